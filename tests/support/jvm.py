"""Options of the JVMs that tests start."""

import json

from checkback.spark.session import SHORT

#: a JVM that ends in minutes, as those of commands that soon end
SHORT_LIVED = SHORT["spark.driver.extraJavaOptions"]
#: of the tests' session, which runs for half an hour: the optimising compiler saves 15 % of the time after minutes,
#: but also compiles what one test alone runs. A method must be run four times as often as by default, which takes an
#: eighth of the CPU time less. With the young generation that Java begins with, 128 MiB, garbage collection takes a
#: tenth of it.
SHARED = (
    "-XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=2400 -XX:Tier4CompileThreshold=60000 "
    "-XX:Tier4BackEdgeThreshold=160000 -XX:+UseSerialGC -Xms1200m -Xmn700m -XX:MetaspaceSize=300m"
)
#: the environment of the processes that tests start
ENVIRON = {"CHECKBACK__SPARK": json.dumps(dict(SHORT))}
