-- Files that a step saved are kept with the step: a later attempt that skips the step shows them with its success.

alter table holdfast.artifacts add column step text;     -- of a staged file: the remembered step that it belongs to
