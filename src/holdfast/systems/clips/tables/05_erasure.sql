-- What the erasure of a user deletes.
call holdfast.register_owner_table('{}.clip_passages');
call holdfast.register_owner_table('{}.clipnest_videos');
call holdfast.register_owner_queue('scrape_jobs', 'user_id');
call holdfast.register_owner_queue('enrich_jobs', 'user_id');
