'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');

const { open } = require('stemmadb');
const { fill, rejection, server } = require('./support.js');

test('a database of a server takes the same calls', { skip: !process.env.STEMMA_BIN }, async (t) => {
  const db = await open((await server(t)).stemma);
  t.after(() => db.close());
  await fill(db);
  const read = await db.get('dune');
  await db.replace({ ...read, price: 11 });
  assert.equal((await rejection(db.replace(read))).code, 'Conflict');
  assert.deepEqual(await db.find({ year: { $gt: 1900 } }, { sort: '-year' }).ids(), ['dune', 'solaris']);
  assert.equal(await db.find().sum('price'), 20.5);
  await db.transaction(async (tx) => {
    const { price } = await tx.get('dune');
    await tx.update('dune', { price: price + 1 });
    assert.equal((await tx.find({ year: 1815 }).toArray()).length, 1);
  });
  assert.equal((await db.get('dune')).price, 12);
  await db.attach('emma', 'a.bin', Buffer.alloc(100_000, 3));
  assert.equal((await db.readFile('emma', 'a.bin')).length, 100_000);
  const watch = db.watch({ year: 1958 });
  assert.deepEqual((await watch.next()).value.added, []);
  await db.insert('eden', { year: 1958, large: 2n ** 60n });
  assert.deepEqual((await watch.next()).value.added[0].large, 2n ** 60n);
  await watch.return();
  const changes = [];
  for await (const change of db.changes()) {
    changes.push(change.id);
    if (change.id === 'eden') break;
  }
  assert.deepEqual(changes.sort(), ['dune', 'eden', 'emma', 'solaris']);
  assert.equal((await rejection(db.info())).code, 'Invalid');
  assert.ok(!db.location.includes('secret'));
});
