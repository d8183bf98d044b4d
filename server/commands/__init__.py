"""The subcommands of `k3-gateway`, a file each. Role: composition; `cli.py` mounts them."""
