"""Manifests for Kubernetes; what of them is made from other files is made by `python -m deploy.kubernetes`."""
