'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');

const { memory, rejection } = require('./support.js');

test('a transaction writes all or nothing', async (t) => {
  const db = await memory(t);
  await db.insert('ada', { balance: 100 });
  await db.insert('bob', { balance: 0 });
  const result = await db.transaction(async (tx) => {
    const ada = await tx.get('ada');
    await tx.update('ada', { $inc: { balance: -30 } });
    await tx.upsert('bob', { balance: 30 });
    assert.equal(await tx.find({ balance: { $lt: 100 } }).count(), 2);
    assert.equal((await db.get('ada')).balance, 100);
    return ada.balance;
  });
  assert.equal(result, 100);
  assert.deepEqual((await db.getMany(['ada', 'bob'])).map((row) => row.balance), [70, 30]);
  const failure = new Error('changed my mind');
  const undone = db.transaction(async (tx) => {
    await tx.delete('ada');
    throw failure;
  });
  assert.equal(await rejection(undone), failure);
  assert.equal((await db.get('ada')).balance, 70);
});

test('transactions that read the same run again', async (t) => {
  const db = await memory(t);
  await db.insert('counter', { n: 0 });
  const increment = () =>
    db.transaction(async (tx) => {
      const { n } = await tx.get('counter');
      await tx.upsert('counter', { n: n + 1 });
    });
  await Promise.all(Array.from({ length: 10 }, increment));
  assert.equal((await db.get('counter')).n, 10);
  let runs = 0;
  const late = db.transaction(
    async (tx) => {
      runs++;
      await tx.get('counter');
      await db.update('counter', { $inc: { n: 1 } });
      await tx.insert({ n: 1 });
    },
    { attempts: 2 },
  );
  assert.deepEqual([(await rejection(late)).code, runs], ['Conflict', 2]);
});

test('a conflict within is the function’s own', async (t) => {
  const db = await memory(t);
  await db.insert('a', {});
  let runs = 0;
  const refused = db.transaction(async (tx) => {
    runs++;
    await tx.insert('a', {});
  });
  assert.deepEqual([(await rejection(refused)).code, runs], ['Conflict', 1]);
});

test('a transaction that has ended can’t be used', async (t) => {
  const db = await memory(t);
  let kept;
  await db.transaction(async (tx) => {
    kept = tx;
    assert.equal(await tx.insertMany([{ _id: 'a' }, { _id: 'b' }]), 2);
  });
  assert.equal((await rejection(kept.get('a'))).code, 'Invalid');
  assert.equal((await rejection(kept.find().toArray())).code, 'Invalid');
});
