"""What each note code means and what to do about it. docs/messages.md is made from these tables, and a test compares
them with the notes and errors in the code.
"""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    meaning: str
    action: str


NOTES: dict[str, Explanation] = {
    "blocks-between-steps": Explanation(
        "Blocks were issued after one step range had ended and before the next one began. Each belongs to the nearest "
        "step.",
        "Nothing, unless most blocks are affected: then mark the whole step in the training script.",
    ),
    "blocks-in-excess": Explanation(
        "A rank has more blocks in a step than the other ranks. The text has the worst case and where the others are.",
        "Check whether the rank's file holds several runs, or the files of several ranks.",
    ),
    "blocks-inferred": Explanation(
        "The profile has no markers. Forward, backward and optimizer blocks were inferred from kernel types, or from "
        "the threads that launched the kernels ([how](unmarked.md)), and have the origin `inferred`.",
        "Mark the passes in the training script for exact blocks ([how](collect/instrument.md)).",
    ),
    "blocks-missing": Explanation(
        "A rank has fewer blocks in a step than the other ranks, or none. The text has the worst case and where the "
        "others are. Means leave these steps out.",
        "Check whether the rank's file is complete, and copy or collect it again.",
    ),
    "blocks-not-found": Explanation(
        "The profile has no markers, and its kernel types show no pipeline blocks.",
        "Mark the passes in the training script ([how](collect/instrument.md)). Data-parallel runs have no pipeline "
        "blocks.",
    ),
    "blocks-recorded-twice": Explanation(
        "Blocks of a rank occur twice with exactly the same times, as in a log that was concatenated with itself, or "
        "in one to which two handlers write each line. They count once.",
        "Remove the copy.",
    ),
    "blocks-without-work": Explanation(
        "Ranges during which the device did nothing were left out, for example the input gradient of the first stage.",
        "Nothing. If blocks with work are missing, check that the profile was taken with device activity.",
    ),
    "capture-not-exported": Explanation(
        "The folder also has raw data of a profiler, or output without device tasks. Its ranks are missing from the "
        "chart. The text names the first folder and the command that makes a profile of it.",
        "Run the command for each folder.",
    ),
    "clock-asymmetric": Explanation(
        "Collectives prove that messages take longer in one direction than in the other; the fit allows for it.",
        "Nothing. The network route between these hosts may deserve a look.",
    ),
    "clock-contradiction": Explanation(
        "Constant clock rates do not explain all messages of these hosts. The text says how far they are off.",
        "Export a shorter window (`--time`), or collect the profile again after the hosts' clocks were synchronised.",
    ),
    "clock-drift-varies": Explanation(
        "Clock rates vary during the recording by the stated amount; the fit assumes constant rates.",
        "Export a shorter window (`--time`) for a better fit.",
    ),
    "clock-few-messages": Explanation(
        "Two hosts exchanged fewer than 8 messages, so the correction of their clocks rests mostly on assumptions.",
        "Record more steps, or take the stated uncertainty seriously.",
    ),
    "clock-host-split": Explanation(
        "Ranks with the same host name have clocks that contradict each other. They are aligned as several hosts.",
        "Use one folder per machine (`machine0/`, `machine1/`, …) or give containers different host names.",
    ),
    "clock-kept": Explanation(
        "The messages of an operation table contradict a common clock. The tool that wrote the table has aligned the "
        "clocks of its ranks, and the figures of the straggler study are computed from these times, so they are kept.",
        "Treat waits between these ranks with care.",
    ),
    "clock-not-aligned": Explanation(
        "No observation constrains the clock of this host well enough. Its wall clock is used.",
        "Record communication of this host with the others, give `--offset HOST=TIME`, or use NTP or PTP. If its "
        "folder holds another job, give one folder at a time.",
    ),
    "clock-one-way": Explanation(
        "All messages between two hosts go in one direction, so transfer time and clock offset cannot be separated.",
        "Record forward and backward passes. Treat times between these hosts with care.",
    ),
    "clock-set": Explanation(
        "The messages with another host, or blocks that overlap, show that the clock of a host was set during the "
        "recording, once or several times. The times before and after are aligned separately, where messages tell when "
        "it was set. If nothing tells which of two clocks was set, the text names both hosts.",
        "Record again, and let the time service slew the clocks instead of stepping them.",
    ),
    "clock-start-gap": Explanation(
        "The recordings of two hosts begin far apart, according to their clocks.",
        "Check that all profiles belong to one run, and check date and time of the hosts.",
    ),
    "clock-stepped": Explanation(
        "Someone set the clock of a host while the job was watched: the new fit differs from the last one by more than "
        "their uncertainties. The new one is used from here on.",
        "If this happens often, let the time service slew the clocks (`chronyd` without `makestep`).",
    ),
    "clock-violations": Explanation(
        "Messages (or blocks, if no messages were recorded) arrive before they were sent. The text counts them before "
        "and after alignment. It is a warning if some remain.",
        "If some remain, see the other notes on clocks.",
    ),
    "clock-without-wall-time": Explanation(
        "The profiler counted times from the boot of the host or from the start of the recording. Only messages, "
        "collectives or dependencies place this host among the others. If no host has a wall clock, the chart has no "
        "dates.",
        "Nothing.",
    ),
    "communication-malformed": Explanation(
        "communication.json is not a JSON object. Transfers and collectives of this rank are missing.",
        "Export the profile again.",
    ),
    "compute-outside-blocks": Explanation(
        "Devices compute for 5 % of their time or more outside all blocks: no range names this work. All figures count "
        "this time as idle.",
        "Mark the rest of the step, too ([how](collect/instrument.md)), or read the bubble as an upper bound.",
    ),
    "critical-path-not-drawn": Explanation(
        "`--critical-path` draws what a step waits for, up to the beginning of the next step. No drawn step has such a "
        "path: the last step of a recording has none, nor has a step that is not whole.",
        "Choose earlier or whole steps with `--steps`.",
    ),
    "dependencies-back-in-time": Explanation(
        "Some blocks begin before the block on which they depend has ended, because a clock is wrong or the times are "
        "those of the CPU. These dependencies have no arrow.",
        "See the notes on clocks.",
    ),
    "devices-inferred": Explanation(
        "`--devices` counts the ranks of a machine from its first one, but the lower ranks of this machine were not "
        "recorded. The devices were inferred from the rank numbers: launchers give each machine consecutive ranks.",
        "If your machines are numbered in another way, use `--ranks`.",
    ),
    "devices-without-blocks": Explanation(
        "A process computes on several GPUs and names no pass on some of them.",
        "Name the passes on these GPUs too, if they belong to the pipeline.",
    ),
    "evaluation-forwards": Explanation(
        "Between two training steps all ranks run forwards without backwards: an evaluation. They are drawn, but "
        "belong to no step and are in no figure. A step time that contains them is left out.",
        "Nothing.",
    ),
    "events-malformed": Explanation(
        "Some events could not be parsed and were left out.",
        "Collect or copy the file again if the count is high.",
    ),
    "events-unpaired": Explanation(
        "Begin events without an end event, or the reverse, were left out.",
        "Nothing. The recording usually began or ended inside a block.",
    ),
    "folder-unreadable": Explanation(
        "The log_dir has folders that you may not read. Profiles in them are missing: of a run whose ranks are not "
        "recorded, other ranks may have their numbers.",
        "Ask for the permission to read them, or copy the profiles.",
    ),
    "formats-mixed": Explanation(
        "PyTorch and MindSpore profiles lie in one folder and were read as one run.",
        "Export each run from a folder of its own.",
    ),
    "forward-only": Explanation(
        "No rank has a backward: evaluation, inference, or a job that ended in its warm-up. If all ranks have as many "
        "forwards, the k-th of each counts as micro-batch k. Without recorded steps all of them are one step.",
        "Nothing for inference. If there were backwards, name them too ([how](collect/instrument.md)).",
    ),
    "forwards-unknown": Explanation(
        "In a capture without named passes, the forwards of a step could not be told from its other work, often "
        "because the capture has only a part of the step. The backwards are certain and are drawn; the forwards are "
        "not.",
        "Capture whole steps, or mark the passes in the training script ([how](collect/instrument.md)).",
    ),
    "host-times": Explanation(
        "The blocks have the times of the host, because you gave `--host` or because the profile has no others "
        "(Ascend: markers without a stream, and no kernels). The host issues work ahead of the device: step times, "
        "bubbles and causes are those of issuing, not of computing.",
        "Leave out `--host`, or record with device activity and, on Ascend, with `mstx.range_start(message, stream)`.",
    ),
    "incomplete-replaced": Explanation(
        "Some sources could not be read (see the errors), so the new files lack them. They replaced the files of an "
        "earlier run, which may have been complete.",
        "Mend the errors and run the command again. To keep earlier files, give another `--out`.",
    ),
    "job-type-unknown": Explanation(
        "Paddle recorded a job type that trace-export does not know. Its blocks are drawn without a kind and do not "
        "count as busy time.",
        "Report it with a line of the log.",
    ),
    "kernels-lost": Explanation(
        "A block launched kernels that are not in the file, because the profiler lost them or stopped before they ran. "
        "The times of the block may be wrong; a block without other kernels is missing. Of a CUDA graph it shows only "
        "where all kernels of a launch are missing.",
        "Collect the profile again with larger buffers or fewer activities, and synchronise the device before you stop "
        "the profiler.",
    ),
    "launch-calls-unusual": Explanation(
        "Unusual CUDA calls launched kernels, so all calls were read. That is slower, not wrong.",
        "Nothing.",
    ),
    "links-not-followed": Explanation(
        "The log_dir has symbolic links to folders outside it. These were not searched, because a link may lead to a "
        "whole file system.",
        "If profiles are there, give `--follow-links`.",
    ),
    "log-rotated": Explanation(
        "Beside the log of a worker lie files named like it and something more: parts of it that were rotated "
        "(`workerlog.0.1`, `workerlog.0-20251127`), or copies (`workerlog.0.bak`). Only the log itself is read; the "
        "steps in other parts are missing.",
        "Join parts into one file in another folder, the oldest part first.",
    ),
    "machine-alone": Explanation(
        "Paddle logs of one machine were read, and the name of its folder says that there are others. What these run "
        "is not recorded here, so no rank is compared with another stage, and none is said to start late.",
        "Give the folder above, which has the folders of all machines, with `--multi_machine`.",
    ),
    "marker-unmatched": Explanation(
        "A rule given with `--marker` matches no name in any source. A rule must match the whole name of a range: an "
        "NVTX, ROCTx or mstx range, an annotation of PyTorch, or with `with_stack` a frame of Python "
        "(`train.py(57): forward`).",
        "Compare the pattern with the names in the profile. Begin it with `.*` to allow any text before it.",
    ),
    "message-labels-inferred": Explanation(
        "The micro-batch and direction of these messages were inferred from the block before the send and the block "
        "after the receive.",
        "Nothing.",
    ),
    "messages-ambiguous": Explanation(
        "Sends and receives between two ranks can be paired in more than one way. They were left out.",
        "Start and stop the profiler at the same step on all ranks.",
    ),
    "messages-unpaired": Explanation(
        "The other sides of some sends or receives are not in the data. The text says whether a rank is missing.",
        "Check whether the profiles of some ranks are missing.",
    ),
    "messages-window-offset": Explanation(
        "The recordings of two ranks begin at different messages. They were paired with the stated window offset.",
        "Nothing. Start the profiler at the same step on all ranks to avoid it.",
    ),
    "messages-without-peer": Explanation(
        "The data do not name the peer rank of these sends and receives, and it could not be inferred.",
        "Collect with a profiler level that records communication in detail (`trace-export docs`).",
    ),
    "metadata-malformed": Explanation(
        "A metadata entry of the profile is not JSON. Group names and parallel sizes may be missing.",
        "Give `--pp`, `--tp` and `--dp` if the stages are wrong.",
    ),
    "microbatch-unknown": Explanation(
        "Blocks have no micro-batch number: part of their step is missing, and the rest fits at several positions.",
        "Record at least one whole step.",
    ),
    "microbatches-implausible": Explanation(
        "The micro-batch numbers in the markers are far larger than the number of blocks in a step. They are not used.",
        "Check the numbers in the markers, or record whole steps.",
    ),
    "microbatches-too-few": Explanation(
        "The data have fewer micro-batches than the schedule needs, so backwards have no number.",
        "Check the number of micro-batches, or record whole steps.",
    ),
    "model-not-drawn": Explanation(
        "`--model` draws the theoretical schedule only for steps that are whole on all ranks. The text names the "
        "others.",
        "Choose whole steps with `--steps`, or a longer `--time`.",
    ),
    "names-partial": Explanation(
        "Names mark only some of the passes of these processes: DeepSpeed's pipeline engine, for example, names the "
        "backwards of its last stage only. Launches, or kernel types on Ascend, do not agree with the names or show no "
        "passes, so the others are not drawn.",
        "Name all passes ([how](collect/instrument.md)), or compare with `--infer only`.",
    ),
    "names-unused": Explanation(
        "Some ranges have the names of passes but belong to something else, such as a reference model: the process "
        "names its own passes of that kind in another way. These ranges are not drawn.",
        "To draw them, give the options in the text.",
    ),
    "no-whole-step": Explanation(
        "Every step lacks blocks on some rank. All figures are of incomplete steps.",
        "Record at least one whole step on all ranks. Do not compare these figures with others.",
    ),
    "operations-missing": Explanation(
        "The sequence numbers of the operations in a table of the straggler study have gaps.",
        "Write the table again. Figures leave out steps with operations missing on some ranks; where they "
        "are missing everywhere, the figures are those of the other operations.",
    ),
    "pairs-differ": Explanation(
        "The sequence numbers of operators and the order of the blocks disagree on which forward a backward belongs "
        "to. The sequence numbers are used, because a framework may reorder backwards.",
        "Nothing.",
    ),
    "passes-merged": Explanation(
        "In this capture without named passes some ranks have fewer backwards in a step than the others. At the turn "
        "of a V two stages follow each other on one rank and send nothing, so their passes come out as one. The passes "
        "of these ranks are left out.",
        "Mark the passes in the training script ([how](collect/instrument.md)).",
    ),
    "process-without-blocks": Explanation(
        "These processes name no pass, and their launches show none, or an option leaves them out. The text has the "
        "most frequent reason.",
        "Nothing, unless they belong to the pipeline: then mark the passes in the training script "
        "([how](collect/instrument.md)).",
    ),
    "profiler-diagnostic": Explanation(
        "The profiler itself wrote this warning into the file, for example about lost events.",
        "Follow the advice of the profiler. Lost events make blocks shorter or fewer.",
    ),
    "profiler-worked": Explanation(
        "The profiler itself worked between the blocks for 1 ms or more at a time: it flushed its buffers or allocated "
        "memory. These steps take longer than without the profiler.",
        "Record fewer steps, or compare with the training log: `report --train-log`.",
    ),
    "range-ends-repaired": Explanation(
        "Ranges closed in the wrong order (`emit_nvtx` with `torch.distributed.pipelining`). Each was taken to end "
        "where the next one starts.",
        "Nothing. Mark the passes with `trace_export.instrument` for exact ends.",
    ),
    "ranges-unclosed": Explanation(
        "Ranges were still open when the recording ended. They were left out.",
        "Nothing. Stop the profiler after a step has ended to keep them.",
    ),
    "rank-captured-twice": Explanation(
        "A folder holds two profiles of one rank with the same content. The first was read.",
        "Nothing, or remove one of them.",
    ),
    "rank-duplicate": Explanation(
        "Two processes in one file have the same rank. The second was left out.",
        "Put the profiles of different runs into different folders.",
    ),
    "rank-numbers-assumed": Explanation(
        "No rank number is recorded. Ranks were numbered in the order of files and processes.",
        "Check `trace-export inspect`; name the files by rank if the order is wrong.",
    ),
    "rank-order-from-work": Explanation(
        "The given sizes match the observed work only in the rank order tp, cp, pp, dp.",
        "Check the parallel layout of the training script if the stages look wrong.",
    ),
    "ranks-absent": Explanation(
        "Rank numbers are missing in the folder, so stages that were counted from the ranks may be wrong.",
        "Add the missing profiles, or give `--pp`, `--tp` and `--dp`.",
    ),
    "ranks-chosen": Explanation(
        "Ranks, devices or replicas were chosen, and others of the run are not read. Ranks are compared with those "
        "that were read. Stages, hosts, collectives and late arrivals to one are not named as causes, because some of "
        "their members may be missing. Gains are upper bounds: the step may wait for ranks that were not read.",
        "Leave `--ranks`, `--replica` and `--devices` out to compare with all.",
    ),
    "ranks-identical": Explanation(
        "Ranks have exactly the times of others, which two processes never have: the file of one, or a part of it, was "
        "copied to the place of another. Figures of their stages count it twice.",
        "Replace the copy by the profile of its rank, or remove it.",
    ),
    "ranks-in-one-log": Explanation(
        "One Paddle log holds the records of several ranks. They were separated by thread id.",
        "Nothing.",
    ),
    "ranks-missing": Explanation(
        "The job has more ranks than there are profiles. The text names those that are missing.",
        "Add their profiles. Where every stage has a rank, only comparisons between replicas lack data.",
    ),
    "ranks-not-drawn": Explanation(
        "One rank per stage is drawn, the first of each.",
        "Use `--tracks rank` to draw all.",
    ),
    "ranks-of-devices": Explanation(
        "One process runs several devices, and each is drawn as a rank of its own: its blocks are the ranges whose "
        "work ran there. The rank is the one that its marks name. Without marks it is the number of the device; with "
        "several processes, the number of the process times the devices of each, plus the device (`inferred`).",
        "Check the stages; give `--pp`, `--tp` and `--dp` if they are wrong.",
    ),
    "ranks-one-after-another": Explanation(
        "Files of one folder and stage without a recorded rank were drawn as different ranks, but some begin when "
        "others have ended. The ranks of a job run at the same time, so these may be windows of the same rank.",
        "Keep the files of one window in the folder, or name the files by rank.",
    ),
    "recording-breaks": Explanation(
        "No rank has a block for more than ten times as long as a step takes: some profilers record a few seconds at a "
        "time into one file. What comes after is a window of its own, and no figure contains the time between. If the "
        "profile records step numbers and they go on by one, the job paused, and the time counts.",
        "If the job was recorded all the time, it paused there: find out what it did (checkpoint, evaluation, data).",
    ),
    "records-malformed": Explanation(
        "Some records of the log are incomplete or mixed with other output, and were left out. The text has the line "
        "of the first one.",
        "Nothing if few. If there are many, check whether several processes write to one log.",
    ),
    "records-stale": Explanation(
        "Paddle repeated the times of the step before. These records were left out.",
        "Nothing.",
    ),
    "replicas-from-sizes": Explanation(
        "An overview reads each replica by itself. First it works out the stage and the replica of every rank: from "
        "the sizes that you give, from those that the profiles record, or from the order of the blocks in a sample.",
        "If the number of stages is wrong, give `--pp`, `--tp` and `--dp`.",
    ),
    "replicas-of-runs": Explanation(
        "An overview reads each replica by itself. The newest complete run of one replica is not that of the others, "
        "for example because a rank died early.",
        "Choose the run with `--run N`.",
    ),
    "report-exported": Explanation(
        "Only `nsys` can read a report (`.nsys-rep`). trace-export ran `nsys export` on it and removed the result "
        "afterwards.",
        "To save time, export it once with `nsys export --type sqlite` and keep the result.",
    ),
    "run-incomplete": Explanation(
        "The job was started several times, and no run has all of its ranks. The newest of the runs with the most "
        "ranks was read.",
        "Check whether files of ranks are missing, or choose a run with `--run`.",
    ),
    "runs-not-read": Explanation(
        "The folder holds several runs of a job, or several jobs. The newest complete run was read. The text names the "
        "others.",
        "Choose another with `--run N`, all with `--run all`, or give the folder of one job; if a host had a wrong "
        "time, give the `--offset` that the text names ([how runs are told apart](runs.md)).",
    ),
    "samples-unplaced": Explanation(
        "The times of the blocks count from the start of the recording, those of the memory samples from the Unix "
        "epoch, and nothing says how the two differ. The samples are not drawn.",
        "Export the profile again, with the times as the profiler writes them.",
    ),
    "schedule-recognised": Explanation(
        "The blocks run in the order of this schedule, or come closer to it than to that of any other.",
        "Nothing.",
    ),
    "schedule-unknown": Explanation(
        "The blocks follow no known schedule. Micro-batches of steps that are whole on all ranks "
        "are numbered in order of appearance.",
        "Record whole steps. Where the source allows it, put the micro-batch number into the marker.",
    ),
    "schedules-differ": Explanation(
        "Several runs follow different schedules, so there is no theory for all of them together.",
        "Choose a run with `--run`, or compare two with `compare DIR --run-a 1 --run-b 2`.",
    ),
    "schema-newer": Explanation(
        "The file has a newer schema than this version was tested with.",
        "Compare the result with the profiler's own view, or update trace-export.",
    ),
    "script-chart-left": Explanation(
        "PaddlePaddle's script wrote `pipeline_profile_perfetto.json` into the same folder before. trace-export "
        "neither replaces nor removes it.",
        "Remove it if you might take it for the new chart.",
    ),
    "selection-absent": Explanation(
        "Some of the ranks, steps or stages that you asked for are not in the data. The text says what there is. For "
        "ranks it is a warning, because the figures lack parts of the pipeline.",
        "Check the option, or copy the profiles of the missing ranks into the folder.",
    ),
    "sizes-contradict": Explanation(
        "A size that you gave differs from that in the profile, and the option is used; or there are more ranks than "
        "the sizes say, and the rest is taken for context parallelism.",
        "Check `--pp`, `--tp`, `--dp` and `--cp`.",
    ),
    "source-not-fetched": Explanation(
        "A file is a pointer of Git LFS: the repository was cloned, but its large files were not fetched. If it is a "
        "profile, its ranks are missing from the chart.",
        "Run `git lfs pull` in the repository.",
    ),
    "source-packed": Explanation(
        "A file that trace-export would read is packed, or in an archive. Its ranks, or a part of what they recorded, "
        "are missing from the chart.",
        "Unpack it with the command in the text.",
    ),
    "source-recorded-twice": Explanation(
        "Two files have the same content, such as a capture under two names, or one is the beginning or the end of the "
        "other, as a log that was copied while it grew. It counts once.",
        "Remove the copy, or replace it by the profile of the other rank.",
    ),
    "stages-absent": Explanation(
        "The profiles say that the pipeline has far more stages than were read. The order of the blocks is "
        "compared with no schedule.",
        "Add the missing profiles, or give `--pp` if the number is wrong.",
    ),
    "stages-contradict": Explanation(
        "Two sources of information give different stages for one rank. The first in "
        "[this order](labels.md#stage-of-a-rank) is used.",
        "Check `--pp`, `--tp`, `--dp` and `--cp`.",
    ),
    "stages-deeper": Explanation(
        "Sends and receives, or a last stage that waits for its first backward, show that the pipeline has more stages "
        "than were read, but not how many. The order of the blocks is compared with no schedule, and waits for the "
        "missing stages have no known cause.",
        "Give `--pp`, or the profiles of all stages.",
    ),
    "stages-default-order": Explanation(
        "Stages follow from parallel sizes and the default order of ranks.",
        "Give `--pp`, `--tp` and `--dp` if they are wrong.",
    ),
    "stages-inferred": Explanation(
        "No stage is recorded. Stages were inferred from the order or the waiting times of the blocks.",
        "Give `--pp`, `--tp` and `--dp` if they are wrong.",
    ),
    "stages-missing": Explanation(
        "Some stages of the pipeline have no profile.",
        "Add the missing profiles; the bubble of the run is incomplete without them.",
    ),
    "stages-uneven": Explanation(
        "Some stages have fewer ranks with a profile than others.",
        "Add the missing profiles if the job has as many ranks in every stage.",
    ),
    "stages-unknown": Explanation(
        "No stage is recorded and none could be inferred. Each of these ranks counts as a stage of its own.",
        "Give `--pp`, `--tp` and `--dp`.",
    ),
    "start-time-unknown": Explanation(
        "The file has no valid start time in unix time. Its times begin at 0.",
        "Give `--offset HOST=TIME` to place this host relative to others.",
    ),
    "step-ends-unknown": Explanation(
        "Where one step ends and the next begins could not be determined. All blocks of these ranks count as one step.",
        "Include an earlier stage, or mark steps in the training script.",
    ),
    "steps-apart": Explanation(
        "A rank runs a step at another time than the other ranks: it lacks a step and numbers the others differently, "
        "or its clock is not aligned. Means leave these steps out.",
        "Check whether the rank's file is complete, and see the notes on clocks.",
    ),
    "steps-missing": Explanation(
        "The profiler announced more steps than any rank recorded.",
        "Check whether the run ended early, or the files are truncated.",
    ),
    "steps-not-whole": Explanation(
        "Some rank lacks blocks of these steps. They are marked, and means leave them out.",
        "See the notes on missing blocks.",
    ),
    "steps-out-of-order": Explanation(
        "A rank begins a step before the previous one. A clock was set back between them, or steps of several "
        "recordings have the same numbers. The time from one of these steps to the next is left out.",
        "Do not set clocks while a job is recorded, and give several recordings one by one.",
    ),
    "steps-renumbered": Explanation(
        "A rank counts its steps from the first one in its recording, which begins later than those of others. Its "
        "steps got the numbers that the others of its host have at the same time, or by wall clocks those of other "
        "hosts.",
        "Nothing, if the beginning of its log or trace was lost; that is what the note says.",
    ),
    "steps-truncated": Explanation(
        "The capture begins or ends inside a step, so the first or last blocks of the step are missing. Means leave "
        "these steps out.",
        "Nothing. Start and stop the profiler between steps to avoid it.",
    ),
    "steps-unclosed": Explanation(
        "Steps were still open when the recording ended. They are incomplete.",
        "Leave them out with `--steps` when you compare steps.",
    ),
    "table-empty": Explanation(
        "A table of a text export is empty, as after an interrupted export or copy. It counts as absent.",
        "Export or copy the profile again.",
    ),
    "tasks-before-launch": Explanation(
        "Tasks of the device begin more than 1 ms before the range in which they were launched, or on Ascend marked "
        "ranges more than 10 ms before the host issued them. No device does that: the times are of another clock. They "
        "were left out, so their blocks may begin too late, end too early, or be missing.",
        "Nothing if few: the first records of a session have such times with some profilers. Otherwise collect the "
        "profile again with a newer version. A source in which more than a tenth of the GPU tasks have such times is "
        "refused.",
    ),
    "tasks-beside-next": Explanation(
        "A stream runs one task after the other. Here most kernels of a stream end more than 0.1 ms after the next one "
        "began, so their durations are wrong or the number is not that of a stream. All times are kept.",
        "Compare a block with the picture of the profiler before you trust a slow rank or stage. If durations are "
        "wrong, collect the profile again with a newer version of the profiler.",
    ),
    "tasks-outside-blocks": Explanation(
        "GPU tasks were launched outside all pipeline ranges, for example by the data loader or the optimizer.",
        "Nothing if the share is small. Otherwise mark more of the step.",
    ),
    "tasks-past-next": Explanation(
        "A stream runs one task after the other. A kernel, or on Ascend a marked range, that ends more than 0.1 ms "
        "after the next one of its stream began has a wrong duration: it was cut where the next one begins. "
        "(Programmatic launches overlap by less.) The last one of a stream was cut if it lasts longer than everything "
        "before it. A marked range was cut at the end of its last kernel if, unlike others, it ends long after that. A "
        "transfer was cut that takes twice as long as all others between its ranks, and ends after the next one began. "
        "Kernels of NCCL and those within one graph are not compared.",
        "Nothing if few. Otherwise collect the profile again with a newer version of the profiler.",
    ),
    "tasks-without-launch": Explanation(
        "The launch calls of some GPU tasks are not in the file. These tasks belong to no block, so the times of "
        "blocks may be wrong. It is a warning if they are more than 0.3 % of all.",
        "Nothing if few: the recording began after the launch. If calls were lost, collect the profile again.",
    ),
    "tensor-parallel-guessed": Explanation(
        "trace-export guessed from the times of the ranks of a stage which of them are tensor-parallel peers and which "
        "are data-parallel replicas.",
        "Give `--tp` and `--dp`.",
    ),
    "times-all-zero": Explanation(
        "All records of the log have the time 0, as in a build without CUDA.",
        "Profile a run on GPUs.",
    ),
    "times-in-milliseconds": Explanation(
        "Paddle writes these times in whole milliseconds; shorter differences cannot be seen.",
        "Nothing.",
    ),
    "times-rounded": Explanation(
        "All times of a table are multiples of 10 µs and not of 100 µs. A spreadsheet keeps 15 digits of a number, and "
        "replaces the others of a unix time by zeros.",
        "Give the table as it was before a spreadsheet saved it, if one did. Durations may be off by 10 µs.",
    ),
    "times-unusable": Explanation(
        "Entries with an impossible time were left out: absent, zero, after the year 2116, of negative length, a "
        "device task that lasts more than a day or is more than a day from the range that launched it. On Ascend, "
        "marked ranges that begin or end while a kernel of their stream runs, or hold no kernel, were left out, "
        "too.",
        "Nothing if few. Otherwise export the profile again.",
    ),
    "times-without-unit": Explanation(
        "`--columns` gives no unit of the times, and as nanoseconds they make a forward too short to be one. All times "
        "are wrong if they are in another unit.",
        "Name the unit: `start=COLUMN:us`, or `:ms` or `:s`, and the same for `end` or `duration`.",
    ),
    "too-many-slices": Explanation(
        "The trace has more slices than a browser can hold.",
        "Choose `--steps` or `--stages`, or split the trace with `--max-slices`.",
    ),
    "trace-damaged": Explanation(
        "The gzip data of a trace fail their check sum, or other data follow them. All events that could be unpacked "
        "are drawn.",
        "Copy the trace again, or check where it was packed (`gzip -t FILE`).",
    ),
    "trace-times-relative": Explanation(
        "`trace_view.json` counts its times from the start of the rank's recording. Kernels and operators "
        "that `kernel_details.csv` or `communication.json` also has, with Unix times, tell when that was.",
        "Nothing.",
    ),
    "trace-truncated": Explanation(
        "The file ends in the middle of the trace. The events before that point were read.",
        "Copy the file again; wait until the profiler has finished.",
    ),
    "transfer-direction-inferred": Explanation(
        "Sends and receives without a name got the direction of the blocks before and after them.",
        "Nothing.",
    ),
    "transfers-inside-blocks": Explanation(
        "A block sends and receives in turns, such as in the all-to-all of experts. These are no messages between "
        "stages; `--detail comm` draws their kernels.",
        "Nothing.",
    ),
    "transfers-without-device": Explanation(
        "Ranges of sends, receives or collectives of a process with several devices launched nothing, and neither "
        "their name nor their thread tells the device. They were left out.",
        "Nothing for blocks. To see them, name their stage.",
    ),
    "warm-up": Explanation(
        "The first steps of a recording take at least twice as long as any later one: kernels are compiled, memory is "
        "reserved, the profiler starts. No mean takes them in.",
        "To see why they take longer, compare them with the others, such as compare DIR --steps-a 1-4 --steps-b 0.",
    ),
}
"""By code."""

ERRORS: dict[str, str] = {
    "UsageError": "Correct the option that the message names; `trace-export COMMAND --help` lists all.",
    "SourceError": "Collect, export or copy the named file again, as the message says. The other inputs are exported; "
    "the exit code is 3.",
    "NothingToExportError": "Run `trace-export inspect` on the folder, and `trace-export docs` for how to collect a "
    "profile.",
    "AlignmentError": "Give `--offset HOST=TIME`, record more communication, or leave `--align strict` out.",
    "OutputError": "Give another place with `--out`; check free space and permissions.",
}
"""What to do about each class of errors; its docstring says what it means."""
