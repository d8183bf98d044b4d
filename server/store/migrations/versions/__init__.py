"""The steps, oldest first by their `down_revision`."""
