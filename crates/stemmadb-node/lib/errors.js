// The class of all errors.
'use strict';

/**
 * An error of the database. `code` is its kind, such as `'Conflict'`, `'NotFound'` or `'Invalid'`; `hint`, if there is
 * one, says what to do.
 */
class StemmaError extends Error {
  constructor(code, message, hint) {
    super(hint ? `${message} (${hint})` : message);
    this.name = 'StemmaError';
    this.code = code;
    this.hint = hint;
  }
}

module.exports = { StemmaError };
