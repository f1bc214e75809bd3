"""Options of the JVMs that tests start."""

#: A JVM that ends in minutes: what it would compile for hours to come costs the tests half of all CPU time.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
