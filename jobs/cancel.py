"""spark-submit entry point of `checkback tx cancel`; takes the same options."""

from checkback.cli import run

if __name__ == "__main__":
    run("tx cancel")
