"""Options of the JVMs that tests start."""

import json

from checkback.spark.session import SHORT

#: a JVM that ends in minutes, as those of commands that soon end
SHORT_LIVED = SHORT["spark.driver.extraJavaOptions"]
#: of the tests' session, which runs for half an hour: the optimising compiler is a loss in the first six minutes, and
#: saves 15 % of the time from then on; with the young generation that Java begins with, 128 MiB, a tenth of the CPU
#: time is garbage collection
SHARED = "-XX:+UseSerialGC -Xms1200m -Xmn700m -XX:MetaspaceSize=300m"
#: the environment of the processes that tests start
ENVIRON = {"CHECKBACK__SPARK": json.dumps(dict(SHORT))}
