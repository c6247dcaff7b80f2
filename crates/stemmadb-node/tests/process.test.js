'use strict';

const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const test = require('node:test');
const { Worker } = require('node:worker_threads');

const { directory } = require('./support.js');

const run = (script, ...options) =>
  execFileSync(process.execPath, [...options, '-e', script], { encoding: 'utf8', cwd: __dirname });

test('a process ends when nothing waits, and does not before', () => {
  const script = `
    const { open } = require('stemmadb');
    open(':memory:').then(async (db) => {
      const changes = db.changes({ since: 'now' });
      setTimeout(() => db.insert('a', {}), 20);
      const { value } = await changes.next();
      console.log(value.id);
    });
  `;
  assert.equal(run(script), 'a\n');
});

test('modules import it by name', () => {
  const script = `import { open, StemmaError } from 'stemmadb'; console.log(typeof open, StemmaError.name);`;
  assert.equal(run(script, '--input-type=module'), 'function StemmaError\n');
});

test('an unclosed database keeps what was written', (t) => {
  const location = `${directory(t)}/a.stemma`;
  const script = (then) => `
    require('stemmadb').open(${JSON.stringify(location)}).then(async (db) => { ${then} });
  `;
  run(script(`await db.insert('a', { n: 1 }); process.exit(0);`));
  assert.equal(run(script(`console.log((await db.get('a')).n);`)), '1\n');
});

test('worker threads have their own calls', async () => {
  const script = `
    const { open } = require('stemmadb');
    const { parentPort } = require('node:worker_threads');
    open(':memory:').then(async (db) => {
      await db.insertMany(Array.from({ length: 100 }, (_, n) => ({ n })));
      parentPort.postMessage(await db.find().count());
      db.changes({ since: 'now' }).next();
      setTimeout(() => process.exit(0), 20);
    });
  `;
  const counts = Array.from({ length: 3 }, () => {
    const worker = new Worker(script, { eval: true });
    return new Promise((resolve, reject) => {
      let count;
      worker.once('message', (message) => (count = message));
      worker.once('error', reject);
      worker.once('exit', () => resolve(count));
    });
  });
  assert.deepEqual(await Promise.all(counts), [100, 100, 100]);
});
