-- Ten questions about a pipeline-parallel step. Durations and waits are nanoseconds.
INCLUDE PERFETTO MODULE trace_export.blocks;

-- How much work of each kind is on each stage?
CREATE PERFETTO VIEW pp_work AS
SELECT stage, rank, kind, count() AS blocks, sum(dur) AS dur, avg(dur) AS mean_dur
FROM pp_block
GROUP BY stage, rank, kind;

-- How long does the forward of each micro-batch take, stage by stage?
CREATE PERFETTO VIEW pp_forward AS
SELECT microbatch, stage, rank, avg(dur) AS mean_dur
FROM pp_block
WHERE kind = 'F'
GROUP BY microbatch, stage, rank;

-- How long is each step, and how much of it is bubble? This is pp_step in trace_export.blocks.

-- Which gaps on a rank are longest?
CREATE PERFETTO VIEW pp_gap AS
SELECT stage, rank, after_block, before_block, ts, next_ts - ts AS dur
FROM (
  SELECT
    stage,
    rank,
    name AS after_block,
    ts + dur AS ts,
    lead(name) OVER on_track AS before_block,
    lead(ts) OVER on_track AS next_ts
  FROM pp_block
  WINDOW on_track AS (PARTITION BY track_id ORDER BY ts)
)
WHERE next_ts > ts;

-- Which transfers take longest, from the end of a block to the start of the one that depends on it?
CREATE PERFETTO VIEW pp_transfer AS
SELECT producer, consumer, src_stage, dst_stage, step, ts, wait
FROM pp_dependency
WHERE src_stage != dst_stage;

-- Which blocks start before the one on which they depend has ended? None, unless a clock is wrong.
CREATE PERFETTO VIEW pp_violation AS
SELECT producer, consumer, src_stage, dst_stage, step, ts, -wait AS early
FROM pp_dependency
WHERE wait < 0;

-- Where is a micro-batch at each moment of a step?
CREATE PERFETTO FUNCTION pp_path(microbatch LONG, step LONG)
RETURNS TABLE(stage LONG, rank LONG, name STRING, ts LONG, dur LONG) AS
SELECT stage, rank, name, ts, dur
FROM pp_block
WHERE microbatch = $microbatch AND step = $step
ORDER BY ts;

-- How many stages are busy at each moment?
CREATE PERFETTO VIEW pp_stages_busy AS
SELECT ts, CAST(value AS INT) AS stages
FROM counter JOIN counter_track ON counter.track_id = counter_track.id
WHERE counter_track.name = 'stages busy';

-- How much of the time of its steps is each rank busy?
CREATE PERFETTO VIEW pp_busy AS
SELECT stage, rank, 100.0 * sum(dur) / (SELECT sum(dur) FROM pp_step) AS percent
FROM pp_block
WHERE step IS NOT NULL
GROUP BY stage, rank;

-- Which blocks are much longer than the usual one of their kind, chunk and rank?
CREATE PERFETTO VIEW pp_long_block AS
SELECT
  name, stage, rank, step, ts, dur,
  dur / avg(dur) OVER (PARTITION BY rank, kind, chunk) AS ratio
FROM pp_block;
