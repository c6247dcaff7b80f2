// Support for browser suites: the browser, the server, and waiting for conditions.
//
// STEMMA_URL: the server, with credentials. CHROMIUM: the browser's program.
'use strict';

const assert = require('node:assert/strict');
const { chromium } = require('playwright-core');

const { STEMMA_URL, CHROMIUM } = process.env;
const { username, password, origin } = new URL(STEMMA_URL);
const headers = { Authorization: `Basic ${btoa(`${username}:${password}`)}`, 'Content-Type': 'application/json' };
const flags = ['--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

// Playwright creates an empty profile directory and removes it.
const launch = () => chromium.launch({ executablePath: CHROMIUM, headless: true, chromiumSandbox: false, args: flags });

// Waits for a condition, not for a fixed time.
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
