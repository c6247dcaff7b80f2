'use strict';

const assert = require('node:assert/strict');
const test = require('node:test');

const { StemmaError, open } = require('stemmadb');
const { books, directory, memory, rejection } = require('./support.js');

test('a document is written, read, changed and deleted', async (t) => {
  const db = await memory(t);
  const { id, revision } = await db.insert('solaris', { title: 'Solaris', year: 1961 });
  assert.equal(id, 'solaris');
  assert.deepEqual(await db.get('solaris'), { _id: 'solaris', _rev: revision, title: 'Solaris', year: 1961 });
  await db.update('solaris', { $inc: { year: 1 }, $push: { tags: 'space' } });
  const read = await db.get('solaris');
  assert.deepEqual([read.year, read.tags], [1962, ['space']]);
  const old = await db.getRevision('solaris', revision);
  assert.ok(old === undefined || old.year === 1961);
  await db.delete('solaris');
  assert.equal(await db.get('solaris'), undefined);
});

test('ids come from the argument, the document, or are made', async (t) => {
  const db = await memory(t);
  assert.equal((await db.insert({ _id: 'a', n: 1 })).id, 'a');
  assert.equal((await db.upsert('b', { _id: 'a', n: 2 })).id, 'b');
  const made = await db.insert({ n: 3 });
  assert.match(made.id, /^[0-9a-f-]{36}$/);
  assert.equal((await db.get(made.id)).n, 3);
  assert.deepEqual((await db.getMany(['a', 'none', 'b'])).map((found) => found?.n), [1, undefined, 2]);
});

test('a document that was read is replaced only if it is current', async (t) => {
  const db = await books(t);
  const read = await db.get('dune');
  await db.replace({ ...read, price: 11 });
  const late = await rejection(db.replace({ ...read, price: 10 }));
  assert.ok(late instanceof StemmaError && late instanceof Error);
  assert.deepEqual([late.code, late.hint], ['Conflict', 'read it again and decide with what you find']);
  assert.equal((await db.get('dune')).price, 11);
  assert.equal((await rejection(db.replace({ _id: 'dune', price: 1 }))).code, 'Invalid');
  assert.equal((await rejection(db.delete('dune', read._rev))).code, 'Conflict');
});

test('errors have the code of their kind', async (t) => {
  const db = await books(t);
  assert.equal((await rejection(db.insert('dune', {}))).code, 'Conflict');
  assert.equal((await rejection(db.delete('none'))).code, 'NotFound');
  assert.equal((await rejection(db.insert('x', [1]))).code, 'Invalid');
  assert.equal((await rejection(db.insert('x'))).code, 'Invalid');
  assert.equal((await rejection(db.find({ year: { $near: 1 } }).toArray())).code, 'Invalid');
  assert.throws(() => db.find({}, { order: 'year' }), { code: 'Invalid' });
  const cyclic = {};
  cyclic.self = cyclic;
  assert.equal((await rejection(db.insert('x', cyclic))).code, 'Invalid');
  await db.createIndex('title', { unique: true, name: 'titles' });
  assert.equal((await rejection(db.insert('dune-2', { title: 'Dune' }))).code, 'Duplicate');
  assert.deepEqual(await db.indexes(), [{ name: 'titles', paths: ['title'], unique: true }]);
  await db.dropIndex('titles');
  await db.close();
  assert.equal((await rejection(db.get('dune'))).code, 'Closed');
  await db.close();
});

test('values come back as they were, as far as JSON has them', async (t) => {
  const db = await memory(t);
  const values = {
    text: 'quotes " \\ and \u0000, \u{1F4D6}',
    numbers: [0, -1, 1.5, 1e300, -0.001, 2 ** 53 - 1, -(2 ** 53 - 1)],
    nested: [{ a: [[], {}] }, null, true, false],
    '': 'empty name',
    digits: '12345678901234567890',
  };
  await db.insert('values', values);
  const { _id, _rev, ...read } = await db.get('values');
  assert.deepEqual(read, values);
  await db.insert('others', { undefined: undefined, nan: NaN, date: new Date(0), set: [undefined] });
  const others = await db.get('others');
  assert.deepEqual([others.nan, others.date, others.set], [null, '1970-01-01T00:00:00.000Z', [null]]);
  assert.ok(!('undefined' in others));
  assert.equal((await rejection(db.insert('half', { text: '\ud800' }))).code, 'Invalid');
});

test('integers beyond the safe ones are BigInt, and exact', async (t) => {
  const db = await memory(t);
  const large = [2n ** 53n, -(2n ** 53n), 2n ** 63n, 2n ** 64n - 1n, -(2n ** 63n)];
  await db.insert('large', { large, small: 5n, text: '9007199254740993', 'a "9007199254740993': 1 });
  const read = await db.get('large');
  assert.deepEqual([read.large, read.small, read.text], [large, 5, '9007199254740993']);
  assert.equal(read['a "9007199254740993'], 1);
  assert.equal(await db.find({ large: { $elemMatch: { $eq: 2n ** 63n } } }).count(), 1);
  assert.equal((await rejection(db.insert('larger', { n: 2n ** 64n }))).code, 'Invalid');
});

test('many documents are written in batches', async (t) => {
  const db = await memory(t);
  async function* rows() {
    for (let n = 0; n < 2500; n++) yield { _id: `row-${n}`, n };
  }
  assert.equal(await db.insertMany(rows(), { batch: 1000 }), 2500);
  assert.equal(await db.find().count(), 2500);
  const more = [{ _id: 'row-1', n: -1 }, { _id: 'new', n: 0 }];
  assert.equal((await rejection(db.insertMany(more))).code, 'Conflict');
  await db.delete('new');
  assert.equal(await db.insertMany(more, { existing: 'skip' }), 1);
  assert.equal((await db.get('row-1')).n, 1);
  assert.equal(await db.insertMany(more, { existing: 'replace' }), 2);
  assert.equal((await db.get('row-1')).n, -1);
});

test('files are buffers', async (t) => {
  const db = await books(t);
  const content = Buffer.from([0, 1, 254, 255]);
  await db.attach('dune', 'cover.png', content, { contentType: 'image/png' });
  await db.attach('dune', 'note.txt', 'text');
  assert.deepEqual(await db.readFile('dune', 'cover.png'), content);
  assert.equal((await db.readFile('dune', 'note.txt')).toString(), 'text');
  assert.equal(await db.readFile('dune', 'none'), undefined);
  const read = await db.get('dune');
  assert.deepEqual(
    Object.entries(read._attachments).map(([name, stub]) => [name, stub.content_type, stub.length]),
    [['cover.png', 'image/png', 4], ['note.txt', 'application/octet-stream', 4]],
  );
  // A replacement keeps them.
  await db.replace({ ...read, price: 1 });
  assert.equal((await db.readFile('dune', 'cover.png')).length, 4);
  await db.detach('dune', 'cover.png');
  assert.equal(await db.readFile('dune', 'cover.png'), undefined);
  assert.equal((await rejection(db.attach('none', 'a', 'b'))).code, 'NotFound');
});

test('a directory keeps documents, and belongs to one process', async (t) => {
  const location = `${directory(t)}/library.stemma`;
  assert.equal((await rejection(open(location, { create: false }))).code, 'NotFound');
  const db = await open(location);
  assert.deepEqual([db.location, db.closed], [location, false]);
  await db.insert('a', { n: 1 });
  assert.equal((await rejection(open(location))).code, 'Locked');
  await db.backup(`${location}-backup`);
  assert.deepEqual(await db.check(), []);
  assert.equal((await db.info()).documents, 1);
  await db.close();
  assert.equal(db.closed, true);
  const again = await open(location, { readOnly: true });
  t.after(() => again.close());
  assert.equal((await again.get('a')).n, 1);
});

test('an encrypted database needs its key', async (t) => {
  const location = `${directory(t)}/secret.stemma`;
  const key = Buffer.alloc(32, 7);
  const db = await open(location, { key });
  await db.insert('a', { n: 1 });
  await db.close();
  assert.equal((await rejection(open(location))).code, 'KeyRequired');
  assert.equal((await rejection(open(location, { key: Buffer.alloc(32, 8) }))).code, 'WrongKey');
  const again = await open(location, { key });
  assert.equal((await again.get('a')).n, 1);
  await again.close();
});
