"""Spark's side of an object store: the packages and Hadoop settings with which it reads where delta-rs writes.

Sources: Hadoop's "Integration with Amazon Web Services" (hadoop-aws), Spark's "Integration with Cloud Infrastructures".
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from checkback.storage.files.object_store import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The version of the Hadoop client that Spark 4.2 bundles, and of the AWS SDK that it was built with. Of the SDK only
#: these modules: the bundle, hadoop-aws's own dependency, has 690 MB.
_HADOOP, _SDK = "3.5.0", "2.35.4"
_S3_PACKAGES = (
    f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    *(f"software.amazon.awssdk:{module}:{_SDK}" for module in ("s3", "s3-transfer-manager", "sts", "apache-client")),
    # 4.2 is not on Maven Central; the one class used is the same
    "org.apache.spark:spark-hadoop-cloud_2.13:4.1.2",
)
#: dependencies of these packages that Spark has, or that nothing here uses
EXCLUDED = (
    "com.google.cloud.bigdataoss:*",
    "com.google.code.findbugs:*",
    "com.squareup.okhttp3:*",
    "commons-codec:*",
    "io.netty:*",
    "joda-time:*",
    "org.apache.hadoop:hadoop-aliyun",
    "org.apache.hadoop:hadoop-azure",
    "org.apache.hadoop:hadoop-azure-datalake",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-cloud-storage",
    "org.apache.hadoop:hadoop-cos",
    "org.apache.hadoop:hadoop-gcp",
    "org.apache.hadoop:hadoop-huaweicloud",
    "org.apache.hadoop:hadoop-tos",
    "org.apache.httpcomponents:*",
    "org.eclipse.jetty:*",
    "software.amazon.awssdk:bundle",
)
#: Writes a checkpoint file as one upload. Spark's default writes a temporary one and renames it, which S3 cannot.
NO_RENAME = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
#: A file is created without a look, two requests, whether a folder has its name (hadoop-aws, "Maximizing Performance").
#: `create` ignores the overwrite flag, too: Spark itself looks before it writes an entry of a checkpoint's log. No
#: setting makes S3A write it on condition; what a second process may do is told from `checkpoint`.
_FEW_REQUESTS = {"fs.s3a.performance.flags": "create,mkdir"}
#: credentials in Hadoop's and in delta-rs's names; from the environment S3A reads them itself
_S3_CREDENTIALS = {
    "fs.s3a.access.key": "aws_access_key_id",
    "fs.s3a.secret.key": "aws_secret_access_key",
    "fs.s3a.session.token": "aws_session_token",
}


def _in_s3(*places: str) -> list[str]:
    """Those of the places that are in S3, as s3://."""
    return [found for found in map(canonical, places) if found is not None and found.startswith("s3://")]


def packages_for(*places: str) -> list[str]:
    """The Maven coordinates that Spark needs to read these places."""
    return list(_S3_PACKAGES) if _in_s3(*places) else []


def hadoop_settings(
    root: str,
    checkpoints: str,
    options: Mapping[str, str],
    environ: Mapping[str, str],
    sources: Sequence[str] = (),
) -> dict[str, str]:
    """Spark settings for tables, checkpoints and ``sources`` in these places; empty unless one is in S3.

    ``options``: delta-rs's (`object_store`); those that are not given come from ``environ``.
    """
    found: dict[str, str] = {}
    if not _in_s3(root, checkpoints, *sources):
        return found
    lower = {key.lower(): value for key, value in environ.items() if key.startswith("AWS_")} | dict(options)
    # A place is s3://, whether it was given as that or as s3a://.
    found["fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    found["fs.AbstractFileSystem.s3.impl"] = "org.apache.hadoop.fs.s3a.S3A"
    # The default, `analytics`, does not repeat a read that broke off: the query would end.
    found["fs.s3a.input.stream.type"] = "classic"
    endpoint = lower.get("aws_endpoint_url_s3") or lower.get("aws_endpoint_url") or lower.get("aws_endpoint")
    if endpoint:
        found["fs.s3a.endpoint"] = endpoint
        found["fs.s3a.connection.expect.continue"] = "false"  # not every server that speaks S3 knows it
        found["fs.s3a.connection.ssl.enabled"] = str(urlsplit(endpoint).scheme != "http").lower()
        virtual = lower.get("aws_virtual_hosted_style_request", "").lower() in ("1", "true")
        found["fs.s3a.path.style.access"] = str(not virtual).lower()
    region = lower.get("aws_region") or lower.get("aws_default_region")
    if region:
        found["fs.s3a.endpoint.region"] = region
    if _in_s3(root) and _in_s3(checkpoints):
        found |= _FEW_REQUESTS
    found |= {key: options[name] for key, name in _S3_CREDENTIALS.items() if name in options}
    settings = {f"spark.hadoop.{key}": value for key, value in found.items()}
    if _in_s3(checkpoints):
        settings[FILE_MANAGER] = NO_RENAME
    return settings
