// What a producer does with Apache's client for Node.js: ENDPOINT SCENARIO...: a JSON array, for each scenario
// its name and what the client was told. The topic has the scenario's name.
const { Producer } = require('rocketmq-client-nodejs');

const [UNKNOWN, COMMIT] = [0, 1];
const [endpoints, ...names] = process.argv.slice(2);
const MIB4 = 4 << 20;

async function producer(topic, check) {
  const started = new Producer({ endpoints, namespace: '', topic, checker: check && { check } });
  await started.startup();
  return started;
}

/** "OK", or the error's class, and the code in it. */
async function said(call) {
  try {
    await call();
    return 'OK';
  } catch (error) {
    return error.constructor.name + (error.code ? ` ${error.code}` : '');
  }
}

const scenarios = {
  async n_commit(topic) {
    const sender = await producer(topic, async () => UNKNOWN);
    const transaction = sender.beginTransaction();
    const about = { tag: 'tagA', keys: ['k1', 'k2'], properties: new Map([['a', 'b']]) };
    await sender.send({ topic, body: Buffer.from('hello'), ...about }, transaction);
    return { commit: await said(() => transaction.commit()), 'commit again': await said(() => transaction.commit()) };
  },

  async n_check(topic) {
    const bodies = [];
    let decided;
    const asked = new Promise(resolve => (decided = resolve));
    const sender = await producer(topic, async message => {
      bodies.push(message.body.toString());
      if (bodies.length < 2) return UNKNOWN;
      decided();
      return COMMIT;
    });
    await sender.send({ topic, body: Buffer.from('half') }, sender.beginTransaction());
    await asked;
    return { 'asked about': bodies };
  },

  async n_errors(topic) {
    const sender = await producer(topic);
    const sends = {
      newline: { topic, properties: new Map([['k', 'a\nb']]), body: Buffer.from('newline') },
      'empty value': { topic, properties: new Map([['k', '']]), body: Buffer.from('empty value') },
      'empty body': { topic, body: Buffer.alloc(0) },
      'body too large': { topic, body: Buffer.alloc(MIB4 + 1) },
      'unknown topic': { topic: `${topic}_unknown`, body: Buffer.from('x') },
      FIFO: { topic, messageGroup: 'g', body: Buffer.from('FIFO') },
    };
    const told = {};
    for (const [name, message] of Object.entries(sends)) told[name] = await said(() => sender.send(message));
    return told;
  },
};

Promise.all(names.map(async name => ({ scenario: name, ...(await scenarios[name](name)) }))).then(told => {
  console.log(JSON.stringify(told));
  // The last answer to a check may still be on its way.
  process.stdin.on('end', () => process.exit(0)).resume();
});
