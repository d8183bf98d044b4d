"""Schemas of the custom resources that ship, as far as they are used: a field that is not named here is refused.

Written from each project's reference: lws.sigs.k8s.io (v1), prometheus-operator.dev (monitoring.coreos.com/v1), keda.sh (2.x),
gateway-api.sigs.k8s.io (v1), gateway-api-inference-extension (InferencePool v1), llm-d.ai (EndpointPickerConfig).
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import kubernetes_validate

Schema = dict[str, Any]
KUBERNETES = "1.34"
"""The oldest version whose schemas the manifests must fit."""


def of(required: Schema, **optional: Schema) -> Schema:
    """A mapping with these fields and no others."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required), "additionalProperties": False}


def some(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


TEXT: Schema = {"type": "string", "minLength": 1}
SWITCH: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}, "minProperties": 1}
SELECTOR = of({"matchLabels": LABELS})
POD: Schema = {"type": "object", "required": ["metadata", "spec"]}  # judged as a Pod, below
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
SCALING = of(
    {"stabilizationWindowSeconds": {"type": "integer", "minimum": 0, "maximum": 3600}},
    policies=some(
        of(
            {
                "type": one_of("Pods", "Percent"),
                "value": COUNT,
                "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
            }
        )
    ),
)

SPECS: dict[tuple[str, str], Schema] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): of(
        {
            "replicas": COUNT,
            "leaderWorkerTemplate": of(
                {"size": {"type": "integer", "minimum": 1}, "workerTemplate": POD},
                leaderTemplate=POD,
                restartPolicy=one_of("RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
            ),
        }
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): of(
        {
            "selector": SELECTOR,
            "endpoints": some(
                of(
                    {"port": TEXT},
                    path={"type": "string", "pattern": "^/"},
                    interval=DURATION,
                    scrapeTimeout=DURATION,
                    authorization=of({"type": one_of("Bearer"), "credentials": of({"name": TEXT, "key": TEXT})}),
                )
            ),
        },
        jobLabel=TEXT,
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): of({"groups": some({"type": "object"})}),  # promtool judges them
    ("inference.networking.k8s.io/v1", "InferencePool"): of(
        {
            "selector": SELECTOR,
            "targetPorts": {**some(of({"number": PORT})), "maxItems": 8},
            "endpointPickerRef": of({"name": TEXT, "port": of({"number": PORT})}, failureMode=one_of("FailOpen", "FailClose")),
        }
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): of(
        {
            "parentRefs": some(of({"name": TEXT}, namespace=TEXT)),
            "rules": some(
                of(
                    {"backendRefs": some(of({"name": TEXT}, group=TEXT, kind=TEXT, port=PORT))},
                    matches=some(
                        of({"path": of({"type": one_of("PathPrefix", "Exact"), "value": {"type": "string", "pattern": "^/"}})})
                    ),
                    timeouts=of({"request": DURATION}),
                )
            ),
        }
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): of(
        {
            "scaleTargetRef": of({"name": TEXT}, apiVersion=TEXT, kind=TEXT),
            "triggers": some(
                of(
                    {
                        "type": one_of("prometheus"),
                        # KEDA's metadata is text, whatever it means.
                        "metadata": of(
                            {"serverAddress": TEXT, "query": TEXT, "threshold": TEXT}, ignoreNullValues=one_of("true", "false")
                        ),
                    },
                    metricType=one_of("AverageValue", "Value"),
                )
            ),
        },
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        fallback=of(
            {"failureThreshold": COUNT, "replicas": COUNT},
            behavior=one_of("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"),
        ),
        advanced=of({}, horizontalPodAutoscalerConfig=of({}, behavior=of({}, scaleUp=SCALING, scaleDown=SCALING))),
    ),
}

PICKER = of(
    {
        "apiVersion": one_of("llm-d.ai/v1alpha1"),
        "kind": one_of("EndpointPickerConfig"),
        "plugins": some(
            of(
                {
                    "type": one_of(
                        "endpoint-notification-source",
                        "approx-prefix-cache-producer",
                        "inflight-load-producer",
                        "prefix-cache-scorer",
                        "active-request-scorer",
                        "max-score-picker",
                        "single-profile-handler",
                    )
                },
                name=TEXT,
                parameters={"type": "object"},
            )
        ),
        "schedulingProfiles": some(of({"name": TEXT, "plugins": some(of({"pluginRef": TEXT}, weight=COUNT))})),
    },
    dataLayer=of({"sources": some(of({"pluginRef": TEXT}, extractors=some(of({"pluginRef": TEXT}))))}, injectDefaults=SWITCH),
)


def faults(resource: dict[str, Any]) -> list[str]:
    """What Kubernetes, or a custom resource's own definition, would refuse in `resource`."""
    schema = SPECS.get((resource["apiVersion"], resource["kind"]))
    if schema is None:
        try:
            kubernetes_validate.validate(resource, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [f"{resource['kind']}: {'.'.join(map(str, error.path))}: {error.message}"]
        except kubernetes_validate.SchemaNotFoundError as error:
            return [f"{resource['kind']}: {error}"]
        return []
    whole = of(
        {"apiVersion": TEXT, "kind": TEXT, "metadata": {"type": "object", "required": ["name", "namespace"]}, "spec": schema}
    )
    found = [f"{resource['kind']}: {error.message}" for error in jsonschema_rs.validator_for(whole).iter_errors(resource)]
    if resource["kind"] == "LeaderWorkerSet" and not found:
        template = resource["spec"]["leaderWorkerTemplate"]
        for name in ("leaderTemplate", "workerTemplate"):
            pod = {"apiVersion": "v1", "kind": "Pod", **template[name]}
            found += [
                f"LeaderWorkerSet: {name}: {fault}" for fault in faults({**pod, "metadata": {"name": "x", **pod["metadata"]}})
            ]
    return found
