"""Grafana's dashboards as code: `python -m deploy.grafana` writes them to `deploy/grafana/dashboards/`."""
