"""Options of the JVMs that tests start."""

import json

#: A JVM that ends in minutes: what it would compile for hours to come costs the tests half of all CPU time.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
#: the same for the processes that they start
ENVIRON = {"CHECKBACK__SPARK": json.dumps({"spark.driver.extraJavaOptions": SHORT_LIVED})}
