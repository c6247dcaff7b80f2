// The databases that are open: PouchDB objects of one name share one, since a directory is open once.
'use strict';

const fs = require('node:fs/promises');
const path = require('node:path');
const { open } = require('stemmadb');

const stores = new Map();

/** The directory of a PouchDB name; nothing for one in memory. */
function location(name, options) {
  return options.memory ? undefined : path.resolve(`${name}.stemma`);
}

/** Opens the database of a name, or uses it once more. */
async function acquire(name, options) {
  const { durability, interval, key, cacheBytes } = options;
  const directory = location(name, options);
  const id = directory ?? `memory:${name}`;
  let store = stores.get(id);
  if (!store) {
    const database = open(directory ?? ':memory:', { durability, interval, key, cacheBytes });
    store = { id, directory, database, count: 0 };
    stores.set(id, store);
  }
  store.count++;
  try {
    await store.database;
  } catch (error) {
    if (stores.get(id) === store) stores.delete(id);
    throw error;
  }
  return store;
}

/** Uses it once less; the last one closes it. A database in memory stays until it is destroyed. */
async function release(store) {
  store.count--;
  if (store.count > 0 || !store.directory || stores.get(store.id) !== store) return;
  stores.delete(store.id);
  await (await store.database).close();
}

/** Closes the database, whoever uses it, and removes its directory. */
async function destroy(store) {
  if (stores.get(store.id) === store) stores.delete(store.id);
  await (await store.database).close();
  if (store.directory) await fs.rm(store.directory, { recursive: true, force: true });
}

module.exports = { acquire, destroy, release };
