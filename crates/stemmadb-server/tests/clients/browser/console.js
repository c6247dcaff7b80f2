// Tests of the web console in Chromium, each as a user does it.
//
// STEMMA_URL: the server, with credentials. CHROMIUM: the browser's program. SUITE_DIR: a directory in which a file
// `restart` makes the test restart the server. STEMMA_SCREENSHOTS: a directory for pictures of the pages; none: no
// pictures are made.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { test, before, after } = require('node:test');
const { launch, server, until } = require('./browser.js');
const { book, fill, branch } = require('./data.js');

const { ask, origin, username, password } = server;
const { SUITE_DIR, STEMMA_SCREENSHOTS } = process.env;
const AXE = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
// Close to the largest document that the server takes.
const LARGE = 7_900_000;
const MANY = 100_000;

let browser, context, page;
const problems = [];

// A page that reports errors of scripts and violations of the content security policy.
async function open(of) {
  const opened = await of.newPage();
  opened.on('pageerror', (error) => problems.push(String(error.stack)));
  opened.on('console', (message) => message.type() === 'error' && /Content Security|Trusted|failed: /.test(message.text()) && problems.push(message.text()));
  opened.on('dialog', (dialog) => {
    if (dialog.type() !== 'beforeunload') problems.push(`a dialog: ${dialog.message()}`);
    dialog.accept();
  });
  return opened;
}

before(async () => {
  browser = await launch();
  context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  page = await open(context);
  await fill(ask);
});

after(() => browser?.close());

const main = (selector) => page.locator(`main ${selector}`);
const text = async (selector = 'main') => (await page.locator(selector).first().innerText()).replace(/\s+/g, ' ');
const shows = (selector, ...expected) => Promise.all(expected.map((part) => until(`${selector} shows ${part}`, async () => {
  const shown = await text(selector);
  if (!shown.includes(part)) throw new Error(`it shows ${shown.slice(0, 2000)}`);
  return true;
})));
const visit = (hash) => page.goto(`${origin}/_console/#${hash}`);
const button = (name) => page.getByRole('button', { name, exact: true });
const editor = () => main('.editor textarea');
const field = (label) => page.locator('dialog').getByLabel(label, { exact: true });

async function picture(name) {
  if (!STEMMA_SCREENSHOTS) return;
  fs.mkdirSync(STEMMA_SCREENSHOTS, { recursive: true });
  await page.waitForTimeout(400);
  await page.screenshot({ path: path.join(STEMMA_SCREENSHOTS, `${name}.png`) });
}

async function logIn(name, word) {
  await field('Name').fill(name);
  await field('Password').fill(word);
  await page.locator('dialog').getByRole('button', { name: 'Log in' }).click();
}

test('the page asks for a login, and shows databases with their counts', async () => {
  await page.goto(`${origin}/_console`);
  await until('it asks', () => page.locator('dialog').isVisible());
  await logIn(username, 'wrong');
  await shows('dialog', 'Name or password is incorrect');
  await logIn(username, password);
  await shows('main table', 'books', '205', 'ready');
  assert.equal((await context.cookies()).find(({ name }) => name === 'AuthSession').httpOnly, true);
  await ask('PUT', 'books/new', book(900));
  await shows('main table', '206');
  await picture('databases');
  await button('New database').click();
  await field('Name').fill('by-hand');
  await page.keyboard.press('Enter');
  await shows('h1', 'by-hand');
  assert.equal((await ask('GET', 'by-hand')).doc_count, 0);
  await visit('/databases');
  await main('input').fill('hand');
  await until('the list is filtered', async () => (await main('tbody tr').count()) === 1);
  assert.deepEqual(problems, []);
});

test('documents are listed page by page, by keyboard too', async () => {
  await visit('/db/books');
  await shows('main table', 'book-0000', 'Title 0', 'title', 'author');
  await picture('documents');
  await button('Next').click();
  await shows('main table', 'book-0120');
  await button('Previous').click();
  await shows('main table', 'book-0000');
  await main('tbody tr').nth(2).focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('j');
  const third = await page.evaluate(() => document.activeElement.innerText.split('\t')[0].trim());
  await page.keyboard.press('Enter');
  await shows('h1', third);
  await page.keyboard.press('Control+k');
  await page.keyboard.type('solar');
  await shows('dialog', 'solaris');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('Enter');
  await shows('h1', 'solaris');
  await visit('/db/books?prefix=book-003');
  await until('only these are listed', async () => (await main('tbody tr').count()) === 10);
});

test('a document is created, edited with its revision, and a conflict is shown', async () => {
  await visit('/db/books/doc/');
  await main('input').fill('emma');
  await editor().fill('{"title": "Emma", "isbn": 1234567890123456789, "year": 1815}');
  await button('Save').click();
  await shows('h1', 'emma');
  const first = await ask('GET', 'books/emma');
  await until('it is read', async () => (await editor().inputValue()).includes('1234567890123456789'));
  await editor().fill((await editor().inputValue()).replace('1815', '1816'));
  await page.keyboard.press('Control+s');
  await shows('.toast', 'Saved as 2-');
  const stored = await (await fetch(`${origin}/books/emma`, { headers: server.headers })).text();
  assert.match(stored, /"isbn":1234567890123456789/);
  assert.equal((await ask('GET', 'books/emma')).year, 1816);
  await editor().fill('{"year": }');
  await button('Save').click();
  await shows('main', 'Line 1: a value expected');
  // Somebody else writes it.
  const now = await ask('GET', 'books/emma');
  await ask('PUT', 'books/emma', { ...now, year: 1817, publisher: 'John Murray' });
  await editor().fill('{"title": "Emma", "year": 1820}');
  await button('Save').click();
  await shows('.conflict-box', 'changed meanwhile', 'year', '1817', '1820', 'publisher', 'John Murray');
  await picture('edit-conflict');
  assert.equal(await editor().inputValue(), '{"title": "Emma", "year": 1820}');
  await button('Save mine over it').click();
  await until('it is saved', async () => (await ask('GET', 'books/emma')).year === 1820);
  assert.notEqual(first._rev, (await ask('GET', 'books/emma'))._rev);
  // Edits survive a look elsewhere.
  await editor().fill('{"title": "draft"}');
  await visit('/db/books');
  await shows('main table', 'book-0000');
  await visit('/db/books/doc/emma');
  await until('the draft is there', async () => (await editor().inputValue()) === '{"title": "draft"}');
  await button('Discard changes').click();
  await until('it is discarded', async () => (await editor().inputValue()).includes('1820'));
  await button('Delete').click();
  await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
  await until('it is deleted', async () => (await ask('GET', 'books/emma')).reason === 'deleted');
  assert.deepEqual(problems, []);
});

test('files are stored, shown and removed', async () => {
  await visit('/db/books/doc/book-0001?tab=files');
  const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64');
  const note = { name: 'a note.txt', mimeType: 'text/plain', buffer: Buffer.from('<b>text</b>') };
  await main('input[type=file]').setInputFiles([{ name: 'dot.png', mimeType: 'image/png', buffer: png }, note]);
  await shows('main table', 'dot.png', 'image/png', 'a note.txt', '11 B');
  await button('a note.txt').click();
  await shows('dialog', '<b>text</b>');
  await page.keyboard.press('Escape');
  await button('dot.png').click();
  await until('the picture is shown', () => page.locator('dialog img').evaluate((image) => image.naturalWidth === 1));
  await page.keyboard.press('Escape');
  await main('tr', { hasText: 'dot.png' }).filter({ hasText: 'dot.png' }).getByRole('button', { name: 'Remove' }).click();
  await page.locator('dialog').getByRole('button', { name: 'Remove' }).click();
  await until('it is removed', async () => Object.keys((await ask('GET', 'books/book-0001'))._attachments).length === 1);
  // The contents can be saved afterwards: with the revision that the files made.
  await button('Contents').click();
  await editor().fill('{"title": "with a file"}');
  await button('Save').click();
  await until('it is saved, and has its file', async () => {
    const doc = await ask('GET', 'books/book-0001');
    return doc.title === 'with a file' && doc._attachments['a note.txt'] !== undefined;
  });
  assert.deepEqual(problems, []);
});

test('a query is completed, run, drawn and explained', async () => {
  await visit('/db/books/query');
  await shows('main table', 'Title 0');
  await shows('.fields', 'author', 'publisher.city', 'tags[]');
  await editor().fill('{"selector": {"');
  await page.keyboard.type('auth');
  await shows('.completion', 'author', 'string');
  await page.keyboard.press('Enter');
  await page.keyboard.type('": "');
  await until('the values are known', async () => {
    await page.keyboard.press('Control+Space');
    return (await page.locator('.completion').count()) > 0 && (await text('.completion')).includes('Austen');
  });
  await page.keyboard.press('Escape');
  assert.equal(await editor().inputValue(), '{"selector": {"author": "');
  await editor().fill(`{
  "selector": {
    "author": "Austen",
    "year": {"$gt": 1850}
  },
  "sort": ["year"],
  "limit": 10
}`);
  await page.keyboard.press('Control+Enter');
  const expected = (await ask('POST', 'books/_find', { selector: { author: 'Austen', year: { $gt: 1850 } }, sort: ['year'], limit: 10 })).docs;
  assert.equal(expected.length, 10);
  await shows('.result-head', '10 rows');
  await until('the rows are those', async () => (await main('tbody tr td:first-child').allInnerTexts()).join() === expected.map(({ _id }) => _id).join());
  await picture('query');
  await button('Next page').click();
  await shows('.result-head', 'page 2');
  await button('JSON').click();
  await shows('main pre.code', '"author": "Austen"');
  await button('Plan').click();
  await shows('.plan', 'equal', 'author', 'range', 'year', 'Rows');
  const { plan } = await ask('POST', 'books/_explain?analyze=true', { selector: { author: 'Austen', year: { $gt: 1850 } }, sort: ['year'], limit: 10 });
  assert.equal(plan.rows, 10);
  await shows('.plan .step.root b', '10');
  await picture('plan');
  await button('Chart').click();
  await main('select[aria-label="by"]').selectOption('author');
  await editor().fill('{"selector": {}}');
  await main('select[aria-label="by"]').selectOption('year');
  await until('columns are drawn', async () => (await main('svg.columns rect').count()) > 20);
  await picture('chart');
  await main('select[aria-label="by"]').selectOption('author');
  await shows('.bars', 'Austen', 'Lem');
  await button('Save as …').click();
  await field('Name').fill('mine');
  await page.keyboard.press('Enter');
  await page.reload();
  await until('it is remembered', async () => (await text('main select[aria-label="Saved queries"]')).includes('mine'));
  await visit(`/db/books/query?q=${encodeURIComponent('{"selector": {"nothing": 1}, "limit": "x"}')}`);
  await shows('main [role=alert]', 'limit');
  assert.deepEqual(problems, []);
});

const cell = (label) => page.locator('.builder').getByLabel(label, { exact: true });
const query = async () => JSON.parse(await editor().inputValue());

test('a query is built from rows, and simple text becomes rows', async () => {
  await visit('/db/books/query');
  await shows('main table', 'Title 0');
  await shows('.fields', 'author');
  // By keyboard alone.
  await button('Builder').focus();
  await page.keyboard.press('Enter');
  await button('Add condition').focus();
  await page.keyboard.press('Enter');
  const focuses = (label) => until(`${label} has the focus`, async () => (await page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText)) === label);
  await focuses('Field of condition 1');
  await until('fields complete it', () => page.evaluate(() => [...document.activeElement.list.options].some(({ value }) => value === 'author')));
  await page.keyboard.type('author');
  for (let tabs = 0; tabs < 3; tabs += 1) await page.keyboard.press('Tab');
  await focuses('Value of condition 1');
  await until('values complete it', () => page.evaluate(() => [...document.activeElement.list.options].some(({ value }) => value === 'Austen')));
  await page.keyboard.type('Austen');
  await button('Add condition').focus();
  await page.keyboard.press('Enter');
  await focuses('Field of condition 2');
  await page.keyboard.type('year');
  assert.equal(await cell('Type of condition 2').inputValue(), 'number', 'the type of its values');
  await cell('Operator of condition 2').selectOption('$gt');
  await cell('Value of condition 2').fill('18x');
  assert.equal(await cell('Value of condition 2').getAttribute('aria-invalid'), 'true');
  assert.deepEqual(await query(), { selector: { author: 'Austen' }, limit: 100 });
  await cell('Value of condition 2').fill('1850');
  await button('Add sort field').click();
  await focuses('Name of sort field 1');
  await page.keyboard.type('year');
  await cell('Direction of sort field 1').selectOption('desc');
  await cell('Limit').fill('7');
  const built = { selector: { author: 'Austen', year: { $gt: 1850 } }, limit: 7, sort: [{ year: 'desc' }] };
  assert.deepEqual(await query(), built);
  await cell('Limit').press('Enter');
  await shows('.result-head', '7 rows');
  const expected = (await ask('POST', 'books/_find', built)).docs.map(({ _id }) => _id);
  await until('the rows are those', async () => (await main('.table-box tbody tr td:first-child').allInnerTexts()).join() === expected.join());
  await picture('builder');

  // Text becomes rows; what rows can't say stays.
  await editor().fill(`{"selector": {"year": {"$gte": 1800, "$lt": 12345678901234567890}, "in_print": true, "tags[]": "sea",
    "$or": [{"pages": 1}, {"pages": {"$gt": 100}}], "title": {"$regex": "^T"}}, "fields": ["_id"], "sort": ["year"]}`);
  await until('there are five rows', async () => (await page.locator('.builder .condition:not(.sort)').count()) === 5);
  await shows('.builder', 'Only in the text: $or');
  assert.equal(await cell('Value of condition 2').inputValue(), '12345678901234567890');
  assert.deepEqual([await cell('Field of condition 4').inputValue(), await cell('Limit').inputValue()], ['tags[]', '']);
  assert.equal(await cell('Type of condition 3').inputValue(), 'true');
  await cell('Operator of condition 3').selectOption('$exists');
  await page.getByRole('button', { name: 'Remove condition 5' }).click();
  await focuses('Add condition');
  const changed = await editor().inputValue();
  assert.match(changed, /"\$lt": 12345678901234567890/);
  assert.deepEqual({ ...JSON.parse(changed).selector, year: 0 }, { year: 0, in_print: { $exists: true }, 'tags[]': 'sea', $or: [{ pages: 1 }, { pages: { $gt: 100 } }] });
  assert.deepEqual([JSON.parse(changed).fields, JSON.parse(changed).sort], [['_id'], ['year']]);
  await button('Run the query').click();
  await until('it is run', async () => (await main('.table-box tbody tr').count()) > 0 && (await page.locator('main [role=alert]').count()) === 0);
  await editor().fill('{"selector": ');
  await shows('.builder', 'The text is not a query. Correct it');
  assert.equal(await button('Add condition').isDisabled(), true);
  await editor().fill('{"selector": {"$and": [{"year": 1}, {"year": {"$gt": 0}}]}, "limit": 3}');
  await until('there are two rows', async () => (await page.locator('.builder .condition').count()) === 2);
  // Two conditions with one operator on one field.
  await cell('Operator of condition 1').selectOption('$gt');
  assert.deepEqual((await query()).selector, { year: { $gt: 1 }, $and: [{ year: { $gt: 0 } }] });
  assert.deepEqual(problems, []);
});

test('hostile names of fields are names in the builder', async () => {
  const plain = ['$where', 'constructor', '<img src=x onerror="owned=1">', '"},{"x":"', ' ', 'toString'];
  // The paths of names with dots, backslashes and brackets have backslashes. Names in front can't begin with `_`.
  const members = new Map([...plain.map((name) => [name, { [name]: 'hostile' }]), ['a\\.b', { 'a.b': 'hostile' }], ['c\\\\d', { 'c\\d': 'hostile' }],
    ['e\\[]', { 'e[]': 'hostile' }], ['o.__proto__', { o: { ['__proto__']: 'hostile' } }], ['o.$gt', { o: { $gt: 'hostile' } }]]);
  const paths = [...members.keys()];
  await ask('PUT', 'names');
  const body = JSON.stringify({ docs: paths.map((path, n) => ({ _id: `n${String(n).padStart(2, '0')}`, ...members.get(path) })) });
  assert.equal((await fetch(`${origin}/names/_bulk_docs`, { method: 'POST', headers: server.headers, body })).status, 201);
  await visit('/db/names/query');
  await shows('.result-head', `${paths.length} rows`);
  await until('the builder is open', async () => (await page.locator('.builder').count()) === 1);
  await button('Add condition').click();
  await until('all fields complete it', () => page.evaluate((count) => document.activeElement.list.options.length >= count + 1, paths.length));
  const offered = await page.evaluate(() => [...document.activeElement.list.options].map(({ value }) => value));
  for (const [n, path] of paths.entries()) {
    assert.ok(offered.includes(path), `${path} is offered: ${offered}`);
    await cell('Field of condition 1').fill(path);
    await cell('Value of condition 1').fill('hostile');
    await cell('Value of condition 1').press('Enter');
    await until(`${path} selects its document`, async () => (await text('.result-head')).includes('1 row,') && (await main('.table-box tbody tr td').first().innerText()) === `n${String(n).padStart(2, '0')}`);
    // And back: the text makes the same row.
    const written = await editor().inputValue();
    await editor().fill('{"selector": {}}');
    await until('there is no row', async () => (await page.locator('.builder .condition').count()) === 0);
    await editor().fill(written);
    await until('there is a row', async () => (await page.locator('.builder .condition').count()) === 1);
    assert.deepEqual([await cell('Field of condition 1').inputValue(), await cell('Value of condition 1').inputValue()], [path, 'hostile']);
  }
  assert.deepEqual(await page.evaluate(() => [window.owned, {}.hostile]), [undefined, undefined]);
  assert.equal(await page.locator('main img').count(), 0);
  assert.deepEqual(problems, []);
});

test('the stemma of a document is drawn, and its conflict is resolved', async () => {
  await visit('/db/books/doc/solaris?tab=stemma');
  const history = await ask('GET', 'books/_history/solaris');
  const revisions = new Set(history.branches.flatMap(({ revisions }) => revisions));
  await until('all revisions are drawn', async () => (await main('.rev').count()) === revisions.size);
  assert.equal(await main('.rev.winner').count(), 1);
  assert.equal(await main('.rev.conflict').count(), history.branches.length - 1);
  assert.equal(await main('.stemma path.edge').count(), revisions.size - 1);
  await shows('section[aria-label="Differences"]', 'translator', 'Johnston', 'Kilmartin');
  await picture('stemma');
  // By keyboard: to the parent, whose changes are shown then.
  await main('.rev.winner').focus();
  await page.keyboard.press('ArrowLeft');
  await until('the parent is chosen', async () => (await main('.rev[aria-pressed=true]').getAttribute('data-rev')) === history.branches[0].revisions[1]);
  const losing = history.branches[1].rev;
  await main('select[aria-label="Conflicting revision"]').selectOption(losing);
  const table = page.locator('section[aria-label="Conflict"]');
  await table.getByLabel(new RegExp(`pages: ${losing.slice(0, 8)}`)).check();
  await button('Resolve').click();
  await until('the conflict is resolved', async () => {
    const doc = await ask('GET', 'books/solaris?conflicts=true');
    return doc._conflicts === undefined && doc.pages === 999 && doc.translator === 'Bill Johnston';
  });
  await until('no conflict is drawn', async () => (await main('.rev.conflict').count()) === 0 && (await main('.rev.deleted').count()) === 2);
  // An earlier state is written again.
  await main('.rev').first().click();
  await button('Write these contents again').click();
  await until('it is the newest', async () => (await ask('GET', 'books/solaris')).year === 1960);
  assert.deepEqual(problems, []);
});

test('a live query shows rows as they are added, changed and removed', async () => {
  await visit(`/db/books/live?q=${encodeURIComponent('{"live": true}')}`);
  await shows('main header .state', 'live');
  await shows('main', '0 rows');
  await ask('PUT', 'books/l1', { live: true, n: 1 });
  await ask('PUT', 'books/l2', { live: true, n: 2 });
  await shows('main', '2 rows', '+ 2 added');
  const { _rev } = await ask('GET', 'books/l1');
  await ask('PUT', 'books/l1', { _rev, live: true, n: 100 });
  await shows('main', '~ 1 changed');
  await shows('main table', '100');
  await ask('PUT', 'books/l2', { _rev: (await ask('GET', 'books/l2'))._rev, live: false });
  await shows('main', '− 1 removed', '1 row');
  await picture('live');
  await visit('/db/books/changes');
  await shows('main table', 'l2');
  await shows('main header', 'live');
  await ask('PUT', 'books/fresh', {});
  await shows('main table', 'fresh', 'created');
  assert.deepEqual(problems, []);
});

test('the database is shown as it was, and what differs between two times', async () => {
  await ask('PUT', 'past');
  await ask('PUT', 'past/a', { n: 1 });
  await ask('PUT', 'past/gone', { n: 2 });
  const then = Number.parseInt((await ask('GET', 'past')).update_seq, 10);
  await ask('PUT', 'past/a', { _rev: (await ask('GET', 'past/a'))._rev, n: 7 });
  await ask('PUT', 'past/b', { n: 3 });
  await ask('DELETE', `past/gone?rev=${(await ask('GET', 'past/gone'))._rev}`);
  await visit('/db/past/time');
  await shows('main', 'no retention', '2 documents', 'now');
  await main('input[type=range]').fill(String(then));
  await shows('main', 'as of then');
  await shows('main table', 'gone', 'n: 1');
  await main('tr').filter({ hasText: /^a/ }).click();
  await shows('dialog', 'Since then', '7');
  await page.keyboard.press('Escape');
  await picture('time');
  await button('Between two times').click();
  await main('input[type=range]').nth(1).fill('5');
  await main('input[type=range]').nth(0).fill(String(then));
  await shows('main', '+ 1 added', '~ 1 changed', '− 1 removed', 'n: 1 → 7');
  await visit('/db/past/time');
  await button('State at a time').click();
  await main('input[type=range]').fill(String(then));
  await shows('main', 'as of then');
  await page.getByRole('link', { name: 'Query this state' }).click();
  await shows('.result-head', '2 rows');
  await main('input[aria-label="As of"]').fill('');
  await button('Run').click();
  await until('now it has others', async () => (await text('main table')).includes('b') && !(await text('main table')).includes('gone'));
  await button('Live').click();
  await shows('h1', 'Live query');
  await shows('main header .state', 'live');
  await shows('main', '2 rows');
  assert.deepEqual(problems, []);
});

test('views, indexes, access and care of a database', async () => {
  await visit('/db/books/indexes');
  await button('by_author').click();
  await shows('section[aria-label="Rows of by_author"]', 'Austen', 'count');
  await button('All rows').click();
  await shows('section[aria-label="Rows of by_author"]', 'book-0');
  await button('New index').click();
  await field('Fields').fill('author, year');
  await field('Name').fill('author-year');
  await page.keyboard.press('Enter');
  await shows('table[aria-label="Indexes"]', 'author-year', 'author, year', 'ready');
  await picture('indexes');
  await visit('/db/by-hand/access');
  await main('input[name=member-names]').fill('ada, bob');
  await button('Save').click();
  await until('it is saved', async () => (await ask('GET', 'by-hand/_security')).members.names?.join() === 'ada,bob');
  await visit('/db/books/settings');
  await shows('main', 'Live', 'Segments', 'Durability');
  await button('Compact').click();
  await shows('.toast', 'compaction has begun');
  await button('Retention …').click();
  await page.locator('dialog select[name=kind]').selectOption('revisions');
  await field('Number').fill('5');
  await page.keyboard.press('Enter');
  await until('it is saved', async () => (await ask('GET', 'books/_retention')).retention.revisions === 5);
  await shows('main', '{"revisions":5}');
  await button('Branch …').click();
  await field('Name of the new database').fill('branched');
  await page.keyboard.press('Enter');
  await shows('h1', 'branched');
  assert.equal((await ask('GET', 'branched')).doc_count, (await ask('GET', 'books')).doc_count);
  await visit('/db/branched/settings');
  await button('Delete …').click();
  await field('Type branched to confirm').fill('branche');
  await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
  await shows('dialog', 'Type branched to confirm.');
  await field('Type branched to confirm').fill('branched');
  await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
  await until('it is deleted', async () => (await ask('GET', 'branched')).status === 404);
  assert.deepEqual(problems, []);
});

test('users, roles, tokens, tasks and metrics of the server', async () => {
  await visit('/users');
  await button('Create _users').click();
  await button('New user').click();
  await field('Name').fill('ada');
  await field('Password').fill('lovelace');
  await field('Roles').fill('reader, writer');
  await page.keyboard.press('Enter');
  await shows('main table', 'ada', 'reader, writer');
  await visit('/roles');
  await button('New role').click();
  await field('Name').fill('guest');
  await page.locator('dialog textarea').fill('{"statements": [{"database": "books", "documents": ["book-0001"], "actions": ["read"]}]}');
  await page.locator('dialog').getByRole('button', { name: 'Save' }).click();
  await shows('main table', 'guest', 'read documents book-0001 in books');
  await visit('/tokens');
  await button('New token').click();
  await field('Name').fill('robot');
  await field('Roles').fill('guest');
  await page.locator('dialog').getByRole('button', { name: 'Create' }).click();
  await shows('dialog', 'stemma_');
  const token = (await text('dialog .secret')).trim();
  const as = (path) => fetch(`${origin}/${path}`, { headers: { Authorization: `Bearer ${token}` } });
  assert.deepEqual([(await as('books/book-0001')).status, (await as('books/book-0002')).status], [200, 404]);
  await page.locator('dialog').getByRole('button', { name: 'Close' }).click();
  await button('Revoke').click();
  await page.locator('dialog').getByRole('button', { name: 'Revoke' }).click();
  await until('it is revoked', async () => (await as('books/book-0001')).status === 401);
  await visit('/tasks');
  await shows('main', 'Nothing runs in the background', 'No database is backed up');
  await ask('PUT', '_replicator');
  const url = origin.replace('//', `//${username}:${password}@`);
  await ask('PUT', '_replicator/onward', { source: `${url}/books`, target: `${url}/onward`, create_target: true, continuous: true });
  await shows('main table', 'replication', 'onward', 'running');
  assert.doesNotMatch(await text(), new RegExp(password));
  await picture('tasks');
  await ask('DELETE', `_replicator/onward?rev=${(await ask('GET', '_replicator/onward'))._rev}`);
  await visit('/metrics');
  await until('metrics are plotted', async () => (await main('.plot polyline').first().getAttribute('points')).split(' ').length > 2);
  await shows('main', 'Requests', 'Memory', '/{db}/_find', 'Version');
  await picture('metrics');
  assert.deepEqual(problems, []);
});

// A receiver of webhooks: the ids of the documents, and the status of its answers.
async function receiver() {
  const got = { ids: [], status: 200 };
  const listening = http.createServer(async (request, response) => {
    let body = '';
    for await (const part of request) body += part;
    if (got.status === 200) got.ids.push(JSON.parse(body).id);
    response.writeHead(got.status).end();
  });
  await new Promise((resolve) => listening.listen(0, '127.0.0.1', resolve));
  return { got, url: `http://127.0.0.1:${listening.address().port}/hook`, close: () => listening.close() };
}

test('a webhook is defined, watched, and its dead letters are delivered again', async () => {
  const secret = 'a secret of sixteen bytes';
  const hook = await receiver();
  await ask('PUT', 'shop');
  await ask('PUT', 'letters');
  await visit('/db/shop/triggers');
  await shows('main', 'The database has no triggers');
  await button('New trigger').click();
  await field('Name').fill('mailer');
  await field('URL').fill(hook.url);
  await field('Secret').fill(secret);
  await field('Selector').fill('{"kind": {"$in": ["<img src=x>", "order"]}');
  await field('Attempts').fill('1');
  await field('Database of dead letters').fill('letters');
  await page.keyboard.press('Enter');
  await shows('dialog [role=alert]', 'Error');
  await field('Selector').fill('{"kind": {"$in": ["<img src=x>", "order"]}}');
  await page.locator('dialog').getByRole('button', { name: 'Save' }).click();
  await shows('main table', 'mailer', hook.url, '<img src=x>', 'running', 'never');
  await ask('PUT', 'shop/o-1', { kind: 'order' });
  await ask('PUT', 'shop/n-1', { kind: 'note' });
  await until('only the order is sent', () => hook.got.ids.join() === 'o-1');
  hook.got.status = 500;
  await ask('PUT', 'shop/o-2', { kind: 'order' });
  await until('it is a dead letter', async () => (await ask('GET', 'letters')).doc_count === 1);
  await button('Deliver again').waitFor();
  await picture('triggers');
  hook.got.status = 200;
  await button('Deliver again').click();
  await shows('.toast', '1 dead letter delivered, 0 failed');
  assert.deepEqual(hook.got.ids, ['o-1', 'o-2']);
  // Another definition: everything but the secret is there.
  await main('tbody tr').first().focus();
  await page.keyboard.press('Enter');
  assert.deepEqual([await field('URL').inputValue(), await field('Secret').inputValue()], [hook.url, '']);
  await field('Secret').fill(secret);
  await field('Selector').fill('');
  await page.locator('dialog').getByRole('button', { name: 'Save' }).click();
  await shows('main table', 'all changes');
  await ask('PUT', 'shop/n-2', { kind: 'note' });
  await until('all changes are sent', () => hook.got.ids.includes('n-2'));
  assert.doesNotMatch(await page.content(), new RegExp(secret));
  assert.equal(await page.locator('main img').count(), 0);
  await button('Delete').click();
  await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
  await shows('main', 'The database has no triggers');
  assert.deepEqual((await ask('GET', 'shop/_triggers')).triggers, {});
  hook.close();
  assert.deepEqual(problems, []);
});

test('topologies are drawn, paused and ended, and federations are asked', async () => {
  for (const name of ['north', 'south']) await ask('PUT', name);
  await ask('PUT', 'north/n-1', { city: 'Oslo' });
  await visit('/topologies');
  await shows('main', 'There are no topologies');
  const url = (name) => `${origin.replace('//', `//${username}:${password}@`)}/${name}`;
  const define = async (what, name, definition) => {
    await button(`New ${what}`).click();
    await field('Name').fill(name);
    await field('Definition').fill(JSON.stringify(definition));
    await page.locator('dialog').getByRole('button', { name: 'Save' }).click();
  };
  await define('topology', 'offices', { shape: 'chain', direction: 'both', nodes: [{ name: 'head', database: 'north' }, { name: 'oslo', database: url('south') }] });
  const offices = page.locator('section[aria-label="Topology offices"]');
  await shows('section[aria-label="Topology offices"]', 'chain, both ways', 'head', 'oslo', 'caught up');
  await until('both directions are good', async () => (await offices.locator('.flow.good').count()) === 2);
  assert.equal(await offices.locator('.node').count(), 2);
  assert.equal((await ask('GET', 'south/n-1')).city, 'Oslo');
  assert.doesNotMatch(await page.content(), new RegExp(`:${password}@`));
  await picture('topologies');
  await button('Pause').click();
  await until('it is paused', async () => (await ask('GET', '_topology/offices')).paused === true);
  await shows('section[aria-label="Topology offices"]', 'paused', 'Resume');
  await button('Resume').click();
  await until('it goes on', async () => (await offices.locator('.flow.good').count()) === 2);
  await define('topology', 'broken', { shape: 'chain', nodes: [{ name: 'head', database: 'north' }] });
  await shows('dialog [role=alert]', 'Error');
  await field('Definition').fill('{"nodes": [{"name": "a", "database": "north"}, {"name": "b", "database": "nowhere"}], "edges": [{"source": "a", "target": "b"}]}');
  await page.locator('dialog').getByRole('button', { name: 'Save' }).click();
  const broken = page.locator('section[aria-label="Topology broken"]');
  await until('its failure is drawn', async () => (await broken.locator('.flow.bad').count()) === 1);
  await broken.getByRole('button', { name: 'Delete …' }).click();
  await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
  await until('it is gone', async () => (await broken.count()) === 0 && (await ask('GET', '_topology/broken')).status === 404);

  await ask('DELETE', `south/n-1?rev=${(await ask('GET', 'south/n-1'))._rev}`);
  await visit('/federations');
  await shows('main', 'There are no federations');
  await define('federation', 'all', { members: [{ name: 'north', database: 'north' }, { name: 'books', database: 'books' }] });
  await main('a').filter({ hasText: 'all' }).click();
  await editor().fill('{"selector": {"title": "Title 7"}}');
  await page.keyboard.press('Control+Enter');
  await shows('table[aria-label="Documents of all"]', 'book-0007', 'Title 7');
  await define('federation', 'partly', { members: [{ name: 'here', database: 'books' }, { name: 'there', database: url('nowhere') }] });
  await shows('main table', 'partly');
  await visit('/federations/partly');
  await button('Run').click();
  await shows('main .note', 'Without there:');
  await shows('table[aria-label="Documents of partly"]', 'book-0000');
  assert.doesNotMatch(await page.content(), new RegExp(`:${password}@`));
  await picture('federations');
  await main('tr').filter({ hasText: 'partly' }).getByRole('button', { name: 'Delete' }).click();
  await page.locator('dialog').getByRole('button', { name: 'Delete' }).click();
  await until('it is deleted', async () => (await ask('GET', '_federation/partly')).status === 404);
  assert.deepEqual(problems, []);
});

test('the log is followed, filtered and paused', async () => {
  // The picture has requests of several kinds.
  await ask('POST', 'books/_find', { selector: { title: 'Title 7' } });
  await ask('PUT', 'books/book-0007', book(901));
  await ask('GET', 'books/no-such-document');
  await ask('GET', 'books/book-0007');
  await visit('/log');
  await shows('main header .state', 'live');
  await shows('main table', 'stemma::request', 'INFO', 'GET /');
  await picture('log');
  // No other client of this process asks for these routes: the table draws only the rows that fit.
  await main('input[type=search]').fill('/_versions');
  await shows('main', 'No line contains this text.');
  await ask('GET', '_node/_local/_versions');
  await shows('main table', 'GET /_node/{node}/_versions', '200', username);
  assert.equal(await main('tbody tr').count(), 1);
  // A line is opened by keyboard.
  await main('tbody tr').first().focus();
  await page.keyboard.press('Enter');
  await shows('dialog', 'Line of the log', '"route": "/_node/{node}/_versions"', '"level": "INFO"', '"seq":');
  await page.keyboard.press('Escape');
  // While it is paused, new lines wait.
  await button('Pause').click();
  await shows('main header .state', 'paused');
  await ask('GET', '_node/_local/_versions');
  await ask('GET', '_node/_local/_system');
  await main('input[type=search]').fill('/_system');
  await page.waitForTimeout(500);
  const before = await main('tbody tr[data-row]').count();
  await main('input[type=search]').fill('/_versions');
  await until('it shows what it showed', async () => (await main('tbody tr').count()) === 1);
  await button('Continue').click();
  await until('it goes on', async () => (await main('tbody tr').count()) === 2);
  await main('input[type=search]').fill('/_system');
  await until('nothing is lost', async () => (await main('tbody tr[data-row]').count()) > before);
  // Only what is at least as severe.
  await main('input[type=search]').fill('');
  await page.getByLabel('Level', { exact: true }).selectOption('error');
  await until('no other lines are shown', async () => (await text('main header .state')) === 'live' && !(await text('main table')).includes('INFO'));
  await page.reload();
  assert.equal(await page.getByLabel('Level', { exact: true }).inputValue(), 'error');
  await page.getByLabel('Level', { exact: true }).selectOption('debug');
  await shows('main table', 'GET /');
  await main('input[type=search]').fill('/_versions');
  await shows('main table', 'GET /_node/{node}/_versions');
  assert.doesNotMatch(await text(), new RegExp(`${password}|lovelace`));
  assert.deepEqual(problems, []);
});

test('users see what they may, and nothing else', async () => {
  const other = await browser.newContext();
  const mine = page;
  page = await open(other);
  const refused = [];
  page.on('response', (answer) => answer.status() === 403 && refused.push(new URL(answer.url()).pathname));
  await page.goto(`${origin}/_console/`);
  await logIn('ada', 'lovelace');
  await shows('main', 'ada may not list databases');
  assert.equal(await page.locator('nav >> text=Users').count(), 0);
  await visit('/users');
  await shows('h1', 'Open a database');
  assert.deepEqual(refused, []);
  await main('input').fill('by-hand');
  await page.keyboard.press('Enter');
  await shows('h1', 'by-hand');
  await visit('/db/books');
  await shows('main [role=alert]', 'Not allowed', 'not allowed to access this db');
  await visit('/db/by-hand/access');
  await main('input[name=member-names]').fill('');
  await button('Save').click();
  await shows('main [role=alert]', 'Not allowed');
  assert.deepEqual((await ask('GET', 'by-hand/_security')).members.names, ['ada', 'bob']);
  await button('Log out').click();
  await until('nobody is logged in', async () => (await page.evaluate(() => fetch('/_session').then((answer) => answer.json()))).userCtx.name === null);
  await other.close();
  page = mine;
  assert.deepEqual(problems, []);
});

test('a session that ends, and a server that restarts, lose nothing', async () => {
  await visit('/db/books/doc/book-0002');
  await until('it is read', async () => (await editor().inputValue()).includes('Title 2'));
  await editor().fill('{"title": "typed before the session ended"}');
  await context.clearCookies();
  await button('Save').click();
  await shows('dialog', 'Your session has ended');
  assert.equal((await ask('GET', 'books/book-0002')).title, 'Title 2');
  await logIn(username, password);
  await until('it is saved after the login', async () => (await ask('GET', 'books/book-0002')).title === 'typed before the session ended');

  await editor().fill('{"title": "typed before the restart"}');
  const watching = await open(context);
  await watching.goto(`${origin}/_console/#/db/books/live?q=${encodeURIComponent('{"live": true}')}`);
  await until('it is live', async () => (await watching.innerText('main')).includes('1 row'));
  fs.writeFileSync(path.join(SUITE_DIR, 'restart'), '');
  await until('the server restarts', () => fs.existsSync(path.join(SUITE_DIR, 'restarted')));
  // Sessions of an administrator whom the configuration names end with the server, unless it is one of a cluster.
  await button('Save').click();
  if (!process.env.STEMMA_TEST_CLUSTER) {
    await shows('dialog', 'Your session has ended');
    await logIn(username, password);
  }
  await until('it is saved', async () => (await ask('GET', 'books/book-0002')).title === 'typed before the restart');
  await ask('PUT', 'books/l9', { live: true, n: 9 });
  await until('the live query goes on', async () => (await watching.innerText('main')).includes('l9'));
  await watching.close();
  assert.deepEqual(problems, []);
});

test('hostile documents stay text, and large ones stay usable', async () => {
  const markup = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>';
  const id = '"><script>window.owned=1</script>';
  const name = '<svg onload=window.owned=1>';
  await ask('PUT', 'hostile');
  await ask('PUT', `hostile/${encodeURIComponent(id)}`, { [name]: markup, nested: { ['__proto__']: { owned: 1 } }, constructor: 'c', html: markup });
  await ask('PUT', 'hostile/javascript:window.owned=1', { [name]: { [markup]: [markup] } });
  await ask('PUT', 'hostile/_design/evil', { views: { [name]: { map: 'function (doc) { emit(doc.html, doc.html); }' } } });
  const rev = (await ask('GET', `hostile/${encodeURIComponent(id)}`))._rev;
  await fetch(`${origin}/hostile/${encodeURIComponent(id)}/${encodeURIComponent(name)}?rev=${encodeURIComponent(rev)}`,
    { method: 'PUT', headers: { ...server.headers, 'Content-Type': 'image/svg+xml' }, body: `<svg xmlns="http://www.w3.org/2000/svg" onload="window.owned=1"><script>window.owned=1</script></svg>` });
  const at = encodeURIComponent(id);
  await visit('/db/hostile');
  await shows('main table', id, 'javascript:window.owned=1', '<img src=x');
  for (const [hash, expected] of [
    [`doc/${at}`, 'window.owned'], [`doc/${at}?tab=stemma`, name], [`doc/${at}?tab=files`, name], ['query', markup.slice(0, 12)], ['live', id],
    ['changes', id], ['time', id], ['indexes', name],
  ]) {
    await visit(`/db/hostile/${hash}`);
    await until(`${hash} shows it`, async () => `${await text()} ${(await editor().count()) ? await editor().first().inputValue() : ''}`.includes(expected));
  }
  await visit(`/db/hostile/doc/${at}?tab=files`);
  await button(name).click();
  await until('the picture is loaded', () => page.locator('dialog img').evaluate((image) => image.complete));
  await page.keyboard.press('Escape');
  assert.deepEqual(await page.evaluate(() => [window.owned, {}.owned]), [undefined, undefined]);
  assert.equal(await page.locator('main img, main script, main svg[onload]').count(), 0);

  await ask('PUT', 'hostile/large', { text: 'x'.repeat(LARGE), kind: 'large' });
  await visit('/db/hostile');
  await shows('main table', 'large');
  await visit('/db/hostile/doc/large');
  await shows('main', 'This document is large', '7.9 MB', 'kind');
  assert.equal(await editor().count(), 0);

  const docs = Array.from({ length: MANY }, (_, n) => ({ _id: `row-${String(n).padStart(6, '0')}`, n, text: `row number ${n} of many, with a text of some length` }));
  await ask('PUT', 'many');
  for (let from = 0; from < MANY; from += 20_000) await ask('POST', 'many/_bulk_docs', { docs: docs.slice(from, from + 20_000) });
  await visit(`/db/many/query?q=${encodeURIComponent(`{"selector": {}, "limit": ${MANY}}`)}`);
  await shows('.result-head', '100,000 rows');
  assert.ok((await page.locator('main *').count()) < 3000, 'only visible rows are elements');
  await main('tbody tr').nth(1).focus();
  await page.keyboard.press('End');
  await shows('main table', `row-0${MANY - 1}`);
  await picture('many-rows');
  await visit('/db/many');
  await shows('main header', '100,000');
  assert.deepEqual(problems, []);
});

const PAGES = ['/databases', '/users', '/roles', '/tokens', '/tasks', '/topologies', '/federations/all', '/metrics', '/log', '/db/books', '/db/books/doc/book-0003', '/db/books/doc/twice?tab=stemma',
  '/db/books/doc/book-0001?tab=files', '/db/books/query', '/db/books/live', '/db/books/changes', '/db/books/time', '/db/books/indexes?view=d/by_author',
  '/db/books/triggers', '/db/books/access', '/db/books/settings'];

async function check(theme) {
  await page.evaluate(AXE);
  return page.evaluate((rules) => window.axe.run(rules), theme === 'dark' ? { runOnly: ['color-contrast'] } : {});
}

test('every page is accessible, in both themes, and fits a narrow screen', async () => {
  await branch(ask, 'twice');
  const found = [];
  for (const [theme, width] of [['light', 1280], ['dark', 1280], ['light', 320]]) {
    await page.emulateMedia({ colorScheme: theme });
    await page.setViewportSize({ width, height: 800 });
    for (const hash of PAGES) {
      await visit(hash);
      await until(`${hash} is loaded`, async () => (await main('h1').count()) === 1 && (await main('.loading').count()) === 0);
      // The narrow pages have the same elements, and the dark ones differ in colors.
      const { violations } = width === 320 && !hash.includes('stemma') ? { violations: [] } : await check(theme);
      for (const { id, nodes } of violations) found.push(`${hash} ${theme} ${width}: ${id}: ${nodes[0].html.slice(0, 200)} ${nodes[0].failureSummary}`);
      const overflow = await page.evaluate(() => {
        const { scrollWidth, clientWidth } = document.querySelector('main');
        return scrollWidth - clientWidth;
      });
      if (overflow > 0) found.push(`${hash} ${theme} ${width}: ${overflow} pixels too wide`);
      if (width === 320 && hash.includes('stemma')) await picture('narrow');
      if (theme === 'dark' && hash.includes('stemma')) await picture('dark');
    }
  }
  await page.setViewportSize({ width: 320, height: 640 });
  await visit('/db/books');
  await button('Menu').click();
  await page.getByRole('link', { name: 'Query' }).click();
  await shows('h1', 'Query');
  await page.keyboard.press('?');
  assert.deepEqual(found, []);
});
