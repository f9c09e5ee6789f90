-- holdfast: unless-extension pgmq
--
-- Upgrades existing queues, whoever created them, to the grants, hints and statement functions of this version.

do $$
declare
  v_queue text;
begin
  for v_queue in
    select m.queue_name from pgmq.meta m
      join pg_catalog.pg_class c on c.relname = pgmq.format_table_name(m.queue_name, 'q')
       and c.relnamespace = 'pgmq'::regnamespace and c.relkind in ('r', 'p')
     where pg_has_role(current_user, c.relowner, 'usage')
  loop
    perform pgmq._grant_table_to_workers(pgmq._get_queue_table(v_queue, 'q'));
    perform pgmq._grant_table_to_workers(to_regclass(format('pgmq.%I', pgmq.format_table_name(v_queue, 'a'))));
    perform pgmq._create_read_hint_sequences(v_queue);
    perform pgmq._grant_sequences(pgmq._get_queue_table(v_queue, 'q'));
    perform pgmq._create_statement_functions(v_queue);
  end loop;
end
$$;
