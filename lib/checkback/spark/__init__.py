"""Spark session: JVM, JARs, settings, Spark Connect, graceful shutdown."""
