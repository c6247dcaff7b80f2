// Databases for tests.
'use strict';

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const { open } = require('stemmadb');

/** A database in memory that is closed after the test. */
async function memory(t) {
  const db = await open(':memory:');
  t.after(() => db.close());
  return db;
}

/** One with three books. */
async function books(t) {
  return fill(await memory(t));
}

async function fill(db) {
  await db.upsert('solaris', { title: 'Solaris', year: 1961, tags: ['novel', 'space'], price: 9.5 });
  await db.upsert('dune', { title: 'Dune', year: 1965, tags: ['novel'], price: 12 });
  await db.upsert('emma', { title: 'Emma', year: 1815, tags: ['novel'], author: { name: 'Austen' } });
  return db;
}

/** A directory that is removed after the test. */
function directory(t) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'stemma-node-'));
  t.after(() => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

/** Starts a server with a database, by the command that `STEMMA_BIN` names; resolves to the database's URLs. */
async function server(t) {
  const home = directory(t);
  const socket = path.join(home, 'wire');
  const databases = path.join(home, 'databases');
  const arguments_ = ['serve', databases, '--listen', '127.0.0.1:0', '--wire-unix', socket];
  const environment = { ...process.env, STEMMA_ADMIN_PASSWORD: 'secret' };
  const child = spawn(process.env.STEMMA_BIN, arguments_, { env: environment, stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  t.after(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  const address = await new Promise((resolve, reject) => {
    let printed = '';
    const read = (data) => {
      printed += data;
      const found = printed.match(/listening on http:\/\/([0-9.]+:[0-9]+)\s/);
      if (found) resolve(found[1]);
    };
    child.stdout.on('data', read);
    child.stderr.on('data', read);
    child.once('exit', () => reject(new Error(printed)));
  });
  const authorization = `Basic ${Buffer.from('admin:secret').toString('base64')}`;
  const created = await fetch(`http://${address}/books`, { method: 'PUT', headers: { authorization } });
  if (!created.ok) throw new Error(await created.text());
  return {
    stemma: `stemma+unix://admin:secret@${socket}?database=books`,
    http: `http://admin:secret@${address}/books`,
  };
}

/** What a promise rejects with. */
async function rejection(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error('it did not reject');
}

module.exports = { books, directory, fill, memory, rejection, server };
