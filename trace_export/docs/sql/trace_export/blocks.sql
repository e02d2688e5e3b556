-- The blocks and steps of a trace that trace-export wrote, as .pftrace or .json.
-- Times (ts, dur) are nanoseconds of the trace; stage, microbatch, … are null where a block has none.

-- A forward, backward, weight gradient or optimizer on a rank.
CREATE PERFETTO VIEW pp_block AS
SELECT
  id,
  ts,
  dur,
  name,
  track_id,
  coalesce(extract_arg(arg_set_id, 'debug.stage'), extract_arg(arg_set_id, 'args.stage')) AS stage,
  coalesce(extract_arg(arg_set_id, 'debug.rank'), extract_arg(arg_set_id, 'args.rank')) AS rank,
  coalesce(extract_arg(arg_set_id, 'debug.run'), extract_arg(arg_set_id, 'args.run')) AS run,
  coalesce(extract_arg(arg_set_id, 'debug.step'), extract_arg(arg_set_id, 'args.step')) AS step,
  coalesce(extract_arg(arg_set_id, 'debug.kind'), extract_arg(arg_set_id, 'args.kind')) AS kind,
  coalesce(extract_arg(arg_set_id, 'debug.microbatch'), extract_arg(arg_set_id, 'args.microbatch')) AS microbatch,
  coalesce(extract_arg(arg_set_id, 'debug.chunk'), extract_arg(arg_set_id, 'args.chunk')) AS chunk
FROM slice
WHERE category = 'block';

-- A training step, from its first block to its last, with the idle share of the pipeline in percent.
CREATE PERFETTO VIEW pp_step AS
SELECT
  id,
  ts,
  dur,
  name,
  coalesce(extract_arg(arg_set_id, 'debug.run'), extract_arg(arg_set_id, 'args.run')) AS run,
  coalesce(extract_arg(arg_set_id, 'debug.step'), extract_arg(arg_set_id, 'args.step')) AS step,
  coalesce(extract_arg(arg_set_id, 'debug.bubble %'), extract_arg(arg_set_id, 'args.bubble %')) AS bubble_percent
FROM slice
WHERE category = 'step';

-- A dependency between two drawn blocks: the producer and the consumer of activations or gradients.
CREATE PERFETTO VIEW pp_dependency AS
SELECT
  producer.id AS producer_id,
  consumer.id AS consumer_id,
  producer.name AS producer,
  consumer.name AS consumer,
  producer.stage AS src_stage,
  consumer.stage AS dst_stage,
  consumer.step,
  producer.ts + producer.dur AS ts,
  consumer.ts - producer.ts - producer.dur AS wait
FROM flow
JOIN pp_block AS producer ON flow.slice_out = producer.id
JOIN pp_block AS consumer ON flow.slice_in = consumer.id;
