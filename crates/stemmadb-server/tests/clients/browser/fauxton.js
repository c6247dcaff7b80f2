// Tests of CouchDB's dashboard in Chromium, served by a Stemma server.
//
// STEMMA_URL: the server, with credentials. CHROMIUM: the browser's program.
'use strict';

const assert = require('node:assert/strict');
const { test, before, after } = require('node:test');
const { launch, server, until } = require('./browser.js');

const { ask, origin, username, password } = server;
let browser, page;
const failed = [];

before(async () => {
  browser = await launch();
  page = await (await browser.newContext()).newPage();
  page.on('response', (answer) => answer.status() >= 400 && failed.push(`${answer.status()} ${answer.request().method()} ${answer.url()}`));
  page.on('pageerror', (error) => failed.push(String(error)));
  await ask('PUT', 'books');
  await ask('POST', 'books/_bulk_docs', { docs: [{ _id: 'solaris', year: 1961 }, { _id: 'fiasco', year: 1986 }] });
  await ask('PUT', 'books/_design/d', { views: { by_year: { map: 'function (doc) { emit(doc.year, 7); }', reduce: '_sum' } } });
  await ask('POST', 'books/_index', { index: { fields: ['year'] }, ddoc: 'index', name: 'years' });
  await page.goto(`${origin}/_utils/`);
  await page.fill('#username', username);
  await page.fill('#password', password);
  await page.click('button:has-text("Log In")');
  await until('it lets us in', async () => (await text()).includes('books'));
});

after(() => browser?.close());

const text = async () => (await page.innerText('body')).replace(/\s+/g, ' ');

async function shows(place, ...expected) {
  await page.goto(`${origin}/_utils/#${place}`);
  for (const part of expected) {
    await until(`${place} shows ${part}`, async () => {
      const shown = await text();
      if (!shown.includes(part)) throw new Error(`it shows ${shown}`);
      return true;
    });
  }
}

test('databases, documents, indexes, permissions, changes and tasks are shown', async () => {
  await shows('/_all_dbs', 'books');
  await shows('/database/books/_all_docs', 'solaris', 'fiasco', '_design/d', (await ask('GET', 'books/solaris'))._rev);
  await shows('/database/books/solaris', '"year": 1961', (await ask('GET', 'books/solaris'))._rev);
  await shows('/database/books/_design/d/_view/by_year', 'solaris 1961 7', 'fiasco 1986 7');
  await shows('/database/books/_design/d/_info', 'Index Information', 'Javascript');
  await shows('/database/books/_index', 'json: year');
  await shows('/database/books/_find', '"year": 1986');
  await shows('/database/books/permissions', '_admin');
  await shows('/database/books/_changes', 'solaris', 'fiasco');
  await shows('/activetasks', 'No active tasks');
  assert.deepEqual(failed, []);
});

test('it creates a database', async () => {
  await shows('/_all_dbs', 'books');
  await page.click('button:has-text("Create Database")');
  await page.fill('#js-new-database-name', 'by-hand');
  await page.click('label[for="non-partitioned-db"]');
  await page.click('#js-create-database');
  await until('it is there', async () => (await ask('GET', 'by-hand')).doc_count === 0);
  assert.deepEqual(failed, []);
});

test('a replication is shown with its state', async () => {
  await ask('PUT', '_replicator');
  await ask('PUT', '_replicator/copy', { source: `${origin.replace('//', `//${username}:${password}@`)}/books`, target: `${origin.replace('//', `//${username}:${password}@`)}/copy`, create_target: true });
  await until('it is done', async () => (await ask('GET', '_scheduler/docs/_replicator/copy')).state === 'completed');
  await shows('/replication', 'books', 'copy', 'Completed');
  assert.deepEqual(failed, []);
});

test('its installation check passes', async () => {
  await shows('/verifyinstall', 'Create Database');
  await page.click('button:has-text("Verify Installation")');
  await until('it has passed', async () => (await text()).includes('Success!'));
  assert.deepEqual((await page.$$eval('table tbody tr', (rows) => rows.map((row) => row.innerText.trim()))).filter((row) => row.includes('✗')), []);
});
