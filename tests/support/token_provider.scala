// Stands in for Spark's spark-token-provider-kafka where no repository has it: what Spark's Kafka source calls of it.
// The tests' broker knows no delegation tokens, so there are none to look up, and nothing but them is left out.
package org.apache.spark.kafka010

import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkConf

class KafkaTokenClusterConf

class KafkaConfigUpdater(module: String, given: Map[String, Object]) {
  private val options = new util.HashMap[String, Object](given.asJava)

  def set(name: String, value: Object): this.type = {
    options.put(name, value)
    this
  }

  def setIfUnset(name: String, value: Object): this.type = {
    options.putIfAbsent(name, value)
    this
  }

  def setAuthenticationConfigIfNeeded(): this.type = this

  def setAuthenticationConfigIfNeeded(cluster: Option[KafkaTokenClusterConf]): this.type = this

  def build(): util.Map[String, Object] = options
}

object KafkaTokenUtil {
  def findMatchingTokenClusterConfig(conf: SparkConf, servers: String): Option[KafkaTokenClusterConf] = None

  def needTokenUpdate(options: util.Map[String, Object], cluster: Option[KafkaTokenClusterConf]): Boolean = false
}

object KafkaRedactionUtil {
  def redactParams(options: Seq[(String, Object)]): Seq[(String, String)] = options.map { case (name, _) => (name, "") }
}
