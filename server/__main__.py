"""`python -m server` is `k3-gateway`."""

from server.cli import main

if __name__ == "__main__":
    main()
