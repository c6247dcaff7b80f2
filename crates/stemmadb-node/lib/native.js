// Loads the native library.
'use strict';

const path = require('node:path');
const { fileName } = require('./platform.js');

const file = path.join(__dirname, '..', fileName());
try {
  module.exports = require(file);
} catch (cause) {
  throw new Error(
    `the native library of stemmadb can't be loaded: ${file}\n` +
      'This package was built for another platform. Build it there: `npm run build` in crates/stemmadb-node.',
    { cause },
  );
}
