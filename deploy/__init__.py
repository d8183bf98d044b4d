"""What a deployment needs beside the gateway; nothing of it is installed with it."""
