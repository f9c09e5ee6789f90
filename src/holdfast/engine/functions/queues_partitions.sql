-- holdfast: unless-extension pgmq
create or replace function pgmq._forget_partitions(text) returns void language sql as 'select null';
