-- holdfast: unless-extension pgmq
--
-- Queues that exist already, whoever made them, get the rights, hints and statements of this version.

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
    perform pgmq._open_to_workers(pgmq._table(v_queue, 'q'));
    perform pgmq._open_to_workers(to_regclass(format('pgmq.%I', pgmq.format_table_name(v_queue, 'a'))));
    perform pgmq._create_hints(v_queue);
    perform pgmq._hand_over_sequences(pgmq._table(v_queue, 'q'));
    perform pgmq._make_statements(v_queue);
  end loop;
end
$$;
