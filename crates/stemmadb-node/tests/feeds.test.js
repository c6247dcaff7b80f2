'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');

const { books, memory, rejection } = require('./support.js');

test('changes that exist, filtered', async (t) => {
  const db = await books(t);
  const ids = async (options) => {
    const found = [];
    for await (const change of db.changes({ timeout: 0, ...options })) found.push(change.id);
    return found;
  };
  assert.deepEqual(await ids(), ['solaris', 'dune', 'emma']);
  assert.deepEqual(await ids({ since: await db.sequence() }), []);
  assert.deepEqual(await ids({ ids: ['emma'] }), ['emma']);
  assert.deepEqual(await ids({ selector: { year: { $gt: 1962 } } }), ['dune']);
  const { value } = await db.changes({ documents: true }).next();
  assert.deepEqual([value.document.title, value.deleted, value.leaves], ['Solaris', false, [value.revision]]);
});

test('changes wait for new ones', async (t) => {
  const db = await memory(t);
  const changes = db.changes({ since: 'now' });
  const first = changes.next();
  await db.insert('a', {});
  assert.equal((await first).value.id, 'a');
  await db.delete('a');
  const { value } = await changes.next();
  assert.deepEqual([value.id, value.deleted], ['a', true]);
  const waiting = changes.next();
  await changes.return();
  assert.equal((await waiting).done, true);
  assert.equal((await changes.next()).done, true);
});

test('a live query has its result, then what changes', async (t) => {
  const db = await books(t);
  const watch = db.watch({ year: { $gt: 1900 } });
  const first = (await watch.next()).value;
  assert.deepEqual([first.isFirst, first.added.length, first.removed], [true, 2, []]);
  await db.insert('eden', { title: 'Eden', year: 1958 });
  assert.deepEqual((await watch.next()).value.added.map((row) => row.title), ['Eden']);
  await db.update('eden', { year: 1959 });
  assert.deepEqual((await watch.next()).value.changed.map((row) => row.year), [1959]);
  await db.update('eden', { year: 1800 });
  assert.deepEqual((await watch.next()).value.removed, ['eden']);
  await watch.return();
});

test('feeds end when the database is closed, and report wrong selectors', async (t) => {
  const db = await memory(t);
  assert.equal((await rejection(db.watch({ $nor: 1 }).next())).code, 'Invalid');
  const ended = db.changes({ since: 'now' }).next();
  const watch = db.watch();
  await watch.next();
  const over = watch.next();
  await db.close();
  const outcome = (promise) => promise.then((step) => step.done, (error) => error.code);
  assert.ok([true, 'Closed'].includes(await outcome(ended)));
  assert.ok([true, 'Closed'].includes(await outcome(over)));
});

test('waiting feeds keep neither calls nor the event loop from going on', async (t) => {
  const db = await memory(t);
  const feeds = Array.from({ length: 60 }, () => db.changes({ since: 'now' }));
  const waiting = feeds.map((feed) => feed.next());
  let ticks = 0;
  const ticker = setInterval(() => ticks++, 1);
  await Promise.all(Array.from({ length: 200 }, (_, n) => db.insert(`a-${n}`, { n })));
  while (ticks === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  clearInterval(ticker);
  for (const change of await Promise.all(waiting)) assert.equal(change.done, false);
  await Promise.all(feeds.map((feed) => feed.return()));
});
