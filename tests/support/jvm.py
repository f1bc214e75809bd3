"""Options of the JVMs that tests start."""

import json

from checkback.spark.session import SHORT

#: a JVM that ends in minutes, as those of commands that soon end
SHORT_LIVED = SHORT["spark.driver.extraJavaOptions"]
#: the same for the processes that they start
ENVIRON = {"CHECKBACK__SPARK": json.dumps(dict(SHORT))}
