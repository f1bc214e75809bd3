"""Options of the JVMs that tests start."""

import json

from checkback.spark.session import SHORT

#: a JVM that ends in minutes, as those of commands that soon end
SHORT_LIVED = SHORT["spark.driver.extraJavaOptions"]
#: of the tests' session, which runs for half an hour, and most of its code in one test alone: without the optimising
#: compiler 48 runs of `reconcile` with six rebuilds take a sixth of the CPU time less, and the last of them no more.
#: The compiled code fills the 48 MiB that Java reserves without it; then Java throws code away and compiles it again.
#: With the young generation that Java begins with, 128 MiB, garbage collection takes a tenth of the time.
SHARED = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xms1200m -Xmn700m -XX:MetaspaceSize=300m"
)
#: the environment of the processes that tests start
ENVIRON = {"CHECKBACK__SPARK": json.dumps(dict(SHORT))}
