// Tests of the example page in Chromium, synchronized with a Stemma server: compares what the page shows with the
// documents that PouchDB stores in the browser and those of the server.
//
// STEMMA_URL: the server, with credentials. PAGE_URL: the page. CHROMIUM: the browser's program.
'use strict';

const assert = require('node:assert/strict');
const { test, before, after } = require('node:test');
const { isDeepStrictEqual } = require('node:util');
const { launch, server, until } = require('./browser.js');

const { PAGE_URL } = process.env;
const { ask, headers, origin, username, password } = server;

let browser;
let made = 0;

before(async () => {
  browser = await launch();
});

after(() => browser?.close());

// A browser tab with the page open, connected to a database.
async function person(database) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const problems = [];
  page.on('pageerror', (error) => problems.push(error));
  await page.goto(PAGE_URL);
  await page.fill('[name=url]', `${origin}/${database}`);
  await page.fill('[name=name]', username);
  await page.fill('[name=password]', password);
  await page.click('#connect button');
  return { context, page, problems };
}

const add = async ({ page }, text) => {
  await page.fill('#add [name=text]', text);
  await page.press('#add [name=text]', 'Enter');
};

// The tasks that a page shows: text and whether it is done.
const shown = ({ page }) => page.$$eval('#tasks li', (items) => items.map((item) => {
  const [done, text] = item.querySelectorAll('input');
  return [text.value, done.checked];
}));

// The documents in the browser and on the server, with their revisions.
const kept = ({ page }) => page.evaluate(async () => (await tasks.allDocs({ include_docs: true, conflicts: true })).rows.map((row) => row.doc));
const there = async (database) => (await ask('GET', `${database}/_all_docs?include_docs=true&conflicts=true`)).rows.map((row) => row.doc);
const item = ({ page }, at) => page.locator('#tasks li').nth(at);
const same = isDeepStrictEqual;

const database = () => `tasks_${made++}`;

test('changes synchronize between page and server', async () => {
  const name = database();
  const ada = await person(name);
  await add(ada, 'größe 日本 <b>&"\'');
  await add(ada, 'tea');
  await until('both arrive', async () => (await there(name)).length === 2);
  const [first, second] = (await there(name)).sort((a, b) => a.added.localeCompare(b.added));
  assert.deepEqual([first.text, first.done, second.text, second.done], ['größe 日本 <b>&"\'', false, 'tea', false]);
  assert.deepEqual(await kept(ada), await there(name));

  await ask('PUT', `${name}/elsewhere`, { text: 'from the server', done: true, added: '9999' });
  await until('it is shown', async () => same(await shown(ada), [['größe 日本 <b>&"\'', false], ['tea', false], ['from the server', true]]));

  await item(ada, 1).locator('[type=checkbox]').click();
  await item(ada, 0).locator('[type=text]').fill('less');
  await item(ada, 0).locator('[type=text]').press('Tab');
  await until('edits of the page arrive', async () => {
    const [one, two] = await Promise.all([first, second].map((task) => ask('GET', `${name}/${task._id}`)));
    return one.text === 'less' && two.done === true && two._rev.startsWith('2-');
  });
  const elsewhere = await ask('GET', `${name}/elsewhere`);
  await ask('PUT', `${name}/elsewhere`, { _rev: elsewhere._rev, text: 'edited there', done: false, added: '9999' });
  await until('an edit of the server arrives', async () => same((await shown(ada))[2], ['edited there', false]));

  await item(ada, 0).locator('.remove').click();
  await until('what the page removes is deleted', async () => (await ask('GET', `${name}/${first._id}`)).reason === 'deleted');
  await ask('DELETE', `${name}/elsewhere?rev=${(await ask('GET', `${name}/elsewhere`))._rev}`);
  await until('what the server deletes is gone', async () => same(await shown(ada), [['tea', true]]));
  assert.deepEqual(await kept(ada), await there(name));
  assert.deepEqual(ada.problems, []);
  await ada.context.close();
});

test('the page works offline and converges afterwards', async () => {
  const name = database();
  const [ada, bob] = [await person(name), await person(name)];
  await add(ada, 'before');
  await until('bob has it', async () => same(await shown(bob), [['before', false]]));
  await ada.context.setOffline(true);
  await add(ada, 'offline');
  // `check` would look at once, while the list is drawn anew.
  await item(ada, 0).locator('[type=checkbox]').click();
  await until('it is done', async () => (await shown(ada))[0][1]);
  await add(bob, 'concurrent');
  await until('it is on the server', async () => (await there(name)).length === 2);
  assert.deepEqual(await shown(ada), [['before', true], ['offline', false]]);
  await ada.context.setOffline(false);
  for (const one of [ada, bob]) {
    await until('both show all', async () => (await shown(one)).length === 3 && same((await shown(one))[0], ['before', true]));
  }
  await until('all are the same', async () => same(await kept(ada), await there(name)) && same(await kept(bob), await there(name)));
  // The document is stored in the browser, and the tab remembers its connection.
  await ada.page.reload();
  await until('a reload keeps it', async () => (await shown(ada)).length === 3);
  await ask('PUT', `${name}/late`, { text: 'after the reload', done: false, added: '9999' });
  await until('it goes on', async () => same((await shown(ada))[3], ['after the reload', false]));
  for (const one of [ada, bob]) await one.context.close();
});

test('a conflict is shown and resolved once', async () => {
  const name = database();
  const [ada, bob] = [await person(name), await person(name)];
  await add(ada, 'plan');
  await until('bob has it', async () => same(await shown(bob), [['plan', false]]));
  const write = async (one, text) => {
    await item(one, 0).locator('[type=text]').fill(text);
    await item(one, 0).locator('[type=text]').press('Tab');
    await until('it is kept', async () => (await kept(one))[0].text === text);
  };
  await Promise.all([ada, bob].map((one) => one.context.setOffline(true)));
  await write(ada, "ada's");
  await write(bob, "bob's");
  await Promise.all([ada, bob].map((one) => one.context.setOffline(false)));
  const choices = (one) => item(one, 0).locator('.versions button').allTextContents();
  for (const one of [ada, bob]) {
    await until('both versions are offered', async () => same((await choices(one)).sort(), ["☐ ada's", "☐ bob's"]));
  }
  assert.deepEqual(await shown(ada), await shown(bob));
  await item(ada, 0).locator('.versions button', { hasText: "bob's" }).click();
  await until('it is decided', async () => {
    const [doc] = await there(name);
    return doc.text === "bob's" && doc._conflicts === undefined;
  });
  for (const one of [ada, bob]) {
    await until('both know', async () => same(await shown(one), [["bob's", false]]) && !(await item(one, 0).locator('.versions').isVisible()));
  }
  for (const one of [ada, bob]) await one.context.close();
});

test('refused users see an error, and pages of other origins get nothing', async () => {
  const name = database();
  const ada = await person(name);
  await add(ada, 'mine');
  await until('it arrives', async () => (await there(name)).length === 1);
  await ada.page.fill('[name=password]', 'wrong');
  await ada.page.click('#connect button');
  const state = () => ada.page.$eval('#status', (status) => `${status.dataset.state}: ${status.textContent}`);
  await until('the error is shown', async () => {
    assert.match(await state(), /^refused: .*Name or password is incorrect/);
    return true;
  });
  // Another name of the same machine is another origin.
  const other = await (await browser.newContext()).newPage();
  await other.goto(PAGE_URL.replace('127.0.0.1', 'localhost'));
  const asked = other.evaluate(([url, given]) => fetch(url, { headers: given }).then((answer) => answer.status), [`${origin}/${name}`, headers]);
  await assert.rejects(asked, /Failed to fetch/);
});
