"""Options of the JVMs that tests start."""

import json

from checkback.spark.session import SHORT

#: A JVM that ends in minutes, as those of commands that soon end. But that of all tests runs the code of many plans,
#: and says so on stderr when there is no place left for it.
SHORT_LIVED = SHORT["spark.driver.extraJavaOptions"] + " -XX:ReservedCodeCacheSize=240m"
#: the same for the processes that they start
ENVIRON = {"CHECKBACK__SPARK": json.dumps(dict(SHORT))}
