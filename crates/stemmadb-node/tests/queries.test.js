'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');

const { books, memory, rejection } = require('./support.js');

const titles = (rows) => rows.map((row) => row.title);

test('documents are found by selectors, sorted, limited and projected', async (t) => {
  const db = await books(t);
  assert.deepEqual(titles(await db.find({ year: { $gt: 1900 } }, { sort: '-year' }).toArray()), ['Dune', 'Solaris']);
  assert.deepEqual(titles(await db.find({}, { sort: ['year'], limit: 1, skip: 1 }).toArray()), ['Solaris']);
  assert.deepEqual(await db.find({ 'author.name': 'Austen' }, { fields: ['title'] }).toArray(), [{ title: 'Emma' }]);
  assert.deepEqual(await db.find({ tags: { $all: ['space'] } }).ids(), ['solaris']);
  assert.equal((await db.find({ year: 1965 }).one()).title, 'Dune');
  assert.equal(await db.find({ year: 1 }).first(), undefined);
  assert.equal((await db.find({}, { sort: 'year' }).first()).title, 'Emma');
  assert.equal((await rejection(db.find().one())).code, 'Invalid');
  assert.equal((await rejection(db.find({ year: 1 }).one())).code, 'NotFound');
  assert.deepEqual([await db.find().count(), await db.find({ year: 1 }).exists()], [3, false]);
});

test('figures and groups', async (t) => {
  const db = await books(t);
  const all = db.find();
  assert.deepEqual([await all.sum('price'), await all.min('year'), await all.max('title')], [21.5, 1815, 'Solaris']);
  assert.deepEqual([await all.average('price'), await all.average('none')], [10.75, null]);
  assert.deepEqual(await all.summary('price'), { count: 2, sum: 21.5, min: 9.5, max: 12 });
  assert.deepEqual(await all.distinct('tags[]'), ['novel', 'space']);
  assert.deepEqual(await all.aggregate({ n: 'count', mean: { average: 'price' } }), { n: 3, mean: 10.75 });
  assert.deepEqual(await all.groupBy('tags[]').aggregate({ n: 'count' }), [
    { 'tags[]': 'novel', n: 3 },
    { 'tags[]': 'space', n: 1 },
  ]);
  const plan = await all.explain({ analyze: true });
  assert.ok(plan.text.length > 0 && typeof plan.tree === 'object');
});

test('rows are iterated over in portions, and can be left', async (t) => {
  const db = await memory(t);
  await db.insertMany(Array.from({ length: 3000 }, (_, n) => ({ _id: String(n).padStart(5, '0'), n })));
  let count = 0;
  for await (const row of db.find({}, { sort: 'n' })) assert.equal(row.n, count++);
  assert.equal(count, 3000);
  for await (const row of db.find()) {
    assert.ok(row._rev);
    break;
  }
  // Without waiting for each other.
  const rows = db.find({}, { limit: 20, sort: 'n' })[Symbol.asyncIterator]();
  const read = await Promise.all(Array.from({ length: 21 }, () => rows.next()));
  assert.deepEqual(read.map(({ value }) => value?.n), [...Array(20).keys(), undefined]);
  const pages = [];
  let next;
  do {
    const page = await db.find({ n: { $lt: 25 } }, { limit: 10, sort: 'n', after: next }).page();
    pages.push(page.rows.length);
    next = page.next;
  } while (next);
  assert.deepEqual(pages.filter((length) => length > 0), [10, 10, 5]);
});

test('all that match are changed or deleted', async (t) => {
  const db = await books(t);
  assert.equal(await db.find({ year: { $gt: 1900 } }).update({ $set: { modern: true } }), 2);
  assert.equal(await db.find({ modern: true }).delete(), 2);
  assert.deepEqual(await db.find().ids(), ['emma']);
});

test('views', async (t) => {
  const db = await books(t);
  const years = await db.defineView('years', { key: 'year', reduce: '_count' });
  assert.deepEqual(await years.groups(), [[1815, 1], [1961, 1], [1965, 1]]);
  const options = { start: 1900, end: 1965, documents: true };
  assert.deepEqual(titles((await years.rows(options)).map((row) => row.document)), ['Solaris']);
  assert.deepEqual([await years.reduce(), await years.reduce({ key: 1 })], [3, null]);
  assert.deepEqual(Object.keys(await db.views()), ['years']);
  await db.dropView('years');
  assert.deepEqual(await db.views(), {});
});

test('schemas and expiration', async (t) => {
  const db = await memory(t);
  await db.requireSchema('user', { type: 'object', required: ['name'] });
  assert.equal((await rejection(db.insert('user:1', {}))).code, 'Invalid');
  await db.requireSchema('user', null);
  await db.insert('user:1', { name: 'Ada' });
  await db.addExpiration('expires');
  await db.insert('old', { expires: 1 });
  assert.equal(await db.get('old'), undefined);
  assert.ok((await db.paths()).some(({ path }) => path === 'name'));
});

test('the past', async (t) => {
  const db = await memory(t);
  await db.keepHistory({ days: 7 });
  await db.insert('a', { n: 1 });
  const then = await db.sequence();
  await db.update('a', { n: 2 });
  assert.equal((await (await db.asOf(then)).get('a')).n, 1);
  const past = await db.asOf(then);
  assert.deepEqual([await past.sequence(), await past.find({ n: 1 }).count()], [then, 1]);
  // A date has no microseconds: the next millisecond is after the update.
  const updated = Date.now();
  while (Date.now() === updated) await new Promise(setImmediate);
  assert.equal((await (await db.asOf(new Date())).get('a')).n, 2);
  const revisions = await db.history('a');
  assert.deepEqual(revisions.map((revision) => revision.document.n), [2, 1]);
  assert.ok(revisions[0].time instanceof Date);
  const [difference] = await db.differences(then, '-0s');
  assert.deepEqual([difference.id, difference.before.n, difference.after.n, difference.paths], ['a', 1, 2, ['n']]);
  await db.delete('a');
  await db.undelete('a');
  assert.equal((await db.get('a')).n, 2);
  const snapshot = await db.snapshot();
  await db.update('a', { n: 3 });
  assert.equal((await snapshot.get('a')).n, 2);
  await db.keepHistory(null);
  assert.equal((await rejection(db.keepHistory('some'))).code, 'Invalid');
});
