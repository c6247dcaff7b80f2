// What suites in a browser share: the browser, the server, and patience.
//
// STEMMA_URL: the server, with credentials. CHROMIUM: the browser's program.
'use strict';

const assert = require('node:assert/strict');
const { chromium } = require('playwright-core');

const { STEMMA_URL, CHROMIUM } = process.env;
const { username, password, origin } = new URL(STEMMA_URL);
const headers = { Authorization: `Basic ${btoa(`${username}:${password}`)}`, 'Content-Type': 'application/json' };
const flags = ['--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

// Playwright gives it an empty directory of its own, and removes that.
const launch = () => chromium.launch({ executablePath: CHROMIUM, headless: true, chromiumSandbox: false, args: flags });

// Waits for a condition, never for a time.
async function until(what, condition) {
  const deadline = Date.now() + 60000;
  let last;
  for (;;) {
    try {
      if (await condition()) return;
    } catch (error) {
      last = error;
    }
    assert.ok(Date.now() < deadline, `waited in vain: ${what}; ${last}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

async function ask(method, path, body) {
  const answer = await fetch(`${origin}/${path}`, { method, headers, body: body && JSON.stringify(body) });
  return { status: answer.status, ...(await answer.json()) };
}

module.exports = { launch, until, server: { ask, headers, origin, username, password } };
