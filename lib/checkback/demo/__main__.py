"""`python -m checkback.demo`: `command`."""

from checkback.demo.launch import launch

if __name__ == "__main__":
    launch("checkback.demo.command")
