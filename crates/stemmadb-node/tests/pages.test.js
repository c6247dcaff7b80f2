// The samples of the package's README and of the guide: the blocks of a page are one module, and `expression; // => value`
// is checked.
'use strict';

const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const test = require('node:test');

const { directory } = require('./support.js');

const OPEN = "import { open } from 'stemmadb'; const db = await open('library.stemma');";
const pages = (process.env.STEMMA_PAGES ?? '').split(path.delimiter).filter(Boolean);

for (const page of pages) {
  test(`samples of ${path.basename(page)}`, (t) => {
    const text = fs.readFileSync(page, 'utf8');
    const blocks = [...text.matchAll(/```js\n(.*?)```/gs)].map((block) => block[1]);
    // The repository's README has a row of a table.
    const row = text.match(/^\| \[Node\.js\].*$/m)?.[0];
    if (row) blocks.push(OPEN, ...[...row.matchAll(/`(.*?)`/g)].map((span) => `${span[1]};`));
    assert.ok(blocks.length > 0);
    const code = blocks.join('\n').replace(/^(.+?);? \/\/ => (.+)$/gm, 'check($1, $2);');
    // Beside this file, so that it finds the package.
    const file = path.join(__dirname, `sample-${path.basename(page)}.mjs`);
    t.after(() => fs.rmSync(file));
    fs.writeFileSync(file, `import { deepEqual as check } from 'node:assert/strict';\n${code}`);
    execFileSync(process.execPath, [file], { cwd: directory(t), stdio: ['ignore', 'pipe', 'pipe'] });
  });
}
