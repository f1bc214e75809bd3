"""Limits of messages and their fields: RocketMQ's, those of the columns, and those of a request to the gateway."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -LONG_MAX - 1
MS_MAX = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z: a time in every engine
TRANSACTION_ID_MAX = 1024
GROUP_MAX = 120  # TopicValidator.GROUP_MAX_LENGTH: %RETRY%<group>_<topic> must stay a topic
TOPIC_MAX = 127  # TopicValidator.TOPIC_MAX_LENGTH
ORDERING_KEY_MAX = 255
#: consume queues of a topic: messages with the same real_queue_id modulo this share one
QUEUES = 64
BODY_MAX = 4 * 1024 * 1024  # MessageStoreConfig.maxMessageSize
PROPERTIES_MAX = 32 * 1024  # "msg properties length limit 32k", SendMessageProcessor
#: Four times the largest body: a longer line cannot be a message, and parsing it would only take memory.
LINE_MAX = 4 * BODY_MAX
#: One op row each; RocketMQ limits a batch of ops to 4 KiB (transactionOpMsgMaxSize), some 2,000 short offsets.
OFFSETS_MAX = 10_000
#: messages or ops of one request
BATCH_MAX = 1000
REMARK_MAX = 1024
#: bytes kept of a rejected input
RAW_MAX = 8 * 1024 * 1024
