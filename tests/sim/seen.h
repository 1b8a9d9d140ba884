/* What the simulator counts: each must happen somewhere in the seeds that the test runs. */
#ifndef CAIRN_SIM_SEEN_H
#define CAIRN_SIM_SEEN_H

#define SIM_SEEN(X)                                                                    \
    X(applied, "rounds applied")                                                       \
    X(skipped, "rounds skipped, not finite")                                           \
    X(skipped_unweighted, "rounds skipped, no weight")                                 \
    X(abandoned, "rounds abandoned")                                                   \
    X(epochs, "epoch changes")                                                         \
    X(epochs_idle, "epoch changes with nothing open")                                  \
    X(carried_apply, "epoch changes that carried an APPLY to a prepared shard")        \
    X(carried_skip, "epoch changes that carried a SKIP to a prepared shard")           \
    X(carried_updating, "epoch changes while a shard was updating")                    \
    X(prepared_void, "prepared shards whose round was void")                           \
    X(drained, "rounds that drained receives, folds or sums")                          \
    X(open_pending, "rounds opened for a shard that still drained")                    \
    X(duplicate_folded, "duplicate chunks, folded before: acknowledged again")         \
    X(duplicate_waiting, "duplicate chunks of one in a slot: dropped")                 \
    X(refused_stale, "chunks, ends and commits refused: stale")                        \
    X(refused_fenced, "chunks, ends and commits refused: not a contributor")           \
    X(refused_checksum, "chunks refused: checksum")                                    \
    X(end_damaged, "ends of micro-batches refused: checksum")                          \
    X(end_overtook, "ends of micro-batches that overtook a chunk")                     \
    X(commit_overtook, "commits that overtook the last end")                           \
    X(resent, "chunks sent again after a lost connection")                             \
    X(acked_late, "chunks acknowledged when the worker had them queued again")         \
    X(regrant_delayed, "grants delayed by a receive of the past")                      \
    X(landed_lost, "receives that failed with their connection")                       \
    X(fold_many, "folds of several contributions in one pass")                         \
    X(unheld, "contributions folded before a lower rank, which has none, ended")       \
    X(absent, "contributions that were absent")                                        \
    X(zero, "chunks that nobody contributed")                                          \
    X(window_one, "runs with one slot a worker")                                       \
    X(window_small, "runs with slots for small chunks")                                \
    X(in_place, "chunks that were read in place")                                      \
    X(unreadable, "chunks that should have been and could not")                        \
    X(in_place_lost, "chunks read in place of a connection that was lost")             \
    X(workers_dead, "workers killed")                                                  \
    X(workers_twin, "workers whose rank a newer one took")                             \
    X(workers_deadline, "workers dropped at the step deadline")                        \
    X(workers_mute, "workers of which nothing arrives any more but their word")        \
    X(given_up, "rounds given up by a worker that stayed")                             \
    X(fabric_lost, "fabric connections lost")                                          \
    X(control_lost, "control connections lost")                                        \
    X(endpoint_lost, "endpoints of shards to workers lost alone")                      \
    X(endpoint_answers, "answers lost with such an endpoint")                          \
    X(endpoint_void, "chunks of void rounds asked about again")                        \
    X(restart_waiting, "coordinators killed while waiting")                            \
    X(restart_fencing, "coordinators killed while fencing")                            \
    X(restart_resolving, "coordinators killed while resolving")                        \
    X(restart_steady, "coordinators killed while steady")                              \
    X(restart_open, "coordinators killed with a round open")                           \
    X(restart_decided, "coordinators killed after the decision")                       \
    X(restart_midway, "coordinators killed between sending to one shard and the next") \
    X(stale_fence, "fences of an epoch that a shard was past, refused")                \
    X(persist_lost, "coordinators killed before an epoch was durable")                 \
    X(result_late, "results told by another incarnation than the one that decided")    \
    X(result_unknown, "workers that came back too late to hear how a round ended")     \
    X(result_void, "workers told to recompute")                                        \
    X(pinned, "consistent cuts")                                                       \
    X(pin_deferred, "consistent cuts put off by a decision")                           \
    X(written, "writes between two steps")                                             \
    X(write_void, "writes that were void")                                             \
    X(carried_write, "epoch changes that carried a WRITE to a prepared shard")         \
    X(state_awaited, "decisions that waited for a client state or a learning rate")    \
    X(state_kept, "client states kept by a skip or a write")                           \
    X(left_alone, "tensors that nobody touched, left alone")                           \
    X(own_count, "updates of tensors that have missed steps")                          \
    X(driven, "updates with a learning rate of the trainer")                           \
    X(driven_kept, "learning rates of the trainer kept by a skip or a write")          \
    X(relayed, "contributions of hosts in rounds that took effect")                    \
    X(forwards, "sums that relays passed on")                                          \
    X(relay_void, "relayed rounds void before the relay's commit")                     \
    X(relay_committed_void, "relayed rounds void after it")                            \
    X(relay_new, "relays that began, or got other members")                            \
    X(relay_pending, "relayed rounds opened while the relay still drained")            \
    X(relay_resent, "chunks that relays sent again")                                   \
    X(relay_lost, "connections of relays to owners lost")                              \
    X(relay_endpoint, "endpoints of owners to relays lost alone")                      \
    X(relay_waited, "folds of relays that waited for a buffer")                        \
    X(relay_more, "buffers of relays taken beyond those wanted")                       \
    X(relay_roomless, "times that a relay's host had no room for another buffer")      \
    X(relay_stuck, "times that nothing but room would let a relay go on")              \
    X(relay_barrier, "contributions that waited for a relay's micro-batch to end")     \
    X(relay_alone, "members of relayed rounds that push to the owners")                \
    X(twin_ended, "second processes of a shard's name that ended")                     \
    X(twin_sat, "second processes of a shard's name that had its seat")                \
    X(twin_relieved, "seats that the process with the state took back")                \
    X(seat_silent, "seats lost by a process that was silent for a lease")              \
    X(store_older, "stores put back from a backup")                                    \
    X(store_other, "stores of another cluster")                                        \
    X(store_refused, "shards that a coordinator might not act on")                     \
    X(store_adopted, "stores made of what the shards hold")                            \
    X(scale_lowered, "loss scales lowered")                                            \
    X(halted, "rounds refused after too many skips in a row")                          \
    X(amended, "terms that let a job go on")                                           \
    X(start_waited, "rounds that waited for all of a launch")                          \
    X(start_alone, "rounds that waited for some of a launch in vain")                  \
    X(lowered, "workers that went on when fewer were asked for")                       \
    X(loss_waited, "waits for lost workers until as many were there")                  \
    X(loss_over, "waits for lost workers in vain")                                     \
    X(loss_halted, "rounds refused since a worker was lost")                           \
    X(surplus, "workers for whom a round had no micro-batch")                          \
    X(dealt, "rounds of more micro-batches than workers")                              \
    X(pauses, "deadlines suspended for workers that said why")                         \
    X(recut, "layouts that came into force")                                           \
    X(slices, "slices settled")                                                        \
    X(slice_back, "slices taken back before they were in force")                       \
    X(slice_refused, "slices that a shard refused")                                    \
    X(slice_cancel, "slices that were canceled")                                       \
    X(taken, "chunks whose state moved")                                               \
    X(taken_round, "rounds that waited for state")                                     \
    X(taken_again, "chunks asked for again after a lost connection")                   \
    X(recut_drains, "fences with a layout that waited for receives and folds")         \
    X(plan_done, "re-shardings done")                                                  \
    X(plan_two, "re-shardings asked for while one was under way")                      \
    X(joined, "shards that joined")                                                    \
    X(left, "shards that left")                                                        \
    X(published_anew, "versions published anew before a shard left")                   \
    X(fresh_dead, "shards that died with nothing of the job")                          \
    X(kept_idle, "shards that died between rounds, and whose memory did not")          \
    X(kept_void, "shards that died in a round, and whose memory did not")              \
    X(kept_reduced, "shards that died prepared, and whose memory did not")             \
    X(kept_cut, "updates cut off, and ended by another process")                       \
    X(kept_prepared, "shards that died with a layout prepared, and were kept")         \
    X(kept_taking, "shards that died while state came, and were kept")                 \
    X(kept_unsettled, "shards that died whole in an unsettled layout, and were kept")  \
    X(mirrored, "looks at mirrors that were in step")                                  \
    X(mirror_filled, "standbys filled")                                                \
    X(mirror_ended, "mirrors that ended, and whose owners went on alone")              \
    X(mirror_knows, "decisions that reached a standby, and not its owner")             \
    X(mirror_asks, "sums asked for of an owner that was gone")                         \
    X(mirror_dropped, "parts dropped by processes without a place")                    \
    X(mirror_unsaved, "words on mirrors that the store did not take")                  \
    X(owners_dead, "hosts of owners that died")                                        \
    X(standbys_dead, "hosts of standbys that died")                                    \
    X(owners_cut_off, "shards cut off from the coordinator")                           \
    X(lost_in_write, "hosts that died as a write began, with the job")                 \
    X(standbys_cut_off, "standbys cut off from the coordinator")                       \
    X(mirror_at_rest, "standbys that joined between two rounds")                       \
    X(places_taken, "places that a standby took")                                      \
    X(places_taken_of_two, "places that one of two standbys in step took")             \
    X(places_cut_off, "places taken of an owner that lives")                           \
    X(place_lost, "places taken, and unknown to the next coordinator")                 \
    X(restart_storing, "coordinators killed while a standby was stored as in step")    \
    X(restart_taking, "coordinators killed while a place was being stored")            \
    X(restart_ending, "coordinators killed while a mirror was being ended")            \
    X(log_all, "losses of all shards' memory")                                         \
    X(log_one, "losses of one shard's memory")                                         \
    X(log_replayed, "updates made again from a log")                                   \
    X(log_prepared, "shards that came back from their log prepared")                   \
    X(log_unsynced, "entries of logs that were not synced, and were there")            \
    X(log_torn, "entries of logs that were torn")                                      \
    X(log_ended, "logs that a write ended")                                            \
    X(lead_leads, "coordinators that began to lead")                                   \
    X(lead_led, "leaders whose lease ended")                                           \
    X(lead_former, "leaders that began while another one was there")                   \
    X(lead_late, "leaders that began when the next one led already")                   \
    X(lead_acts, "events that a former leader acted on")                               \
    X(lead_decides, "rounds that a former leader decided")                             \
    X(lead_stale, "writes that etcd refused, since another one led")                   \
    X(lead_lost, "answers of etcd that were lost")                                     \
    X(lead_twice, "changes that arrived once more")                                    \
    X(lead_unknown, "leaders that stepped down since nobody knew what was written")    \
    X(lead_paused, "leaders that were stopped for a while")                            \
    X(lead_cut, "coordinators cut off from etcd")                                      \
    X(lead_down, "times that etcd had no quorum")                                      \
    X(line_back, "rollbacks of jobs to a former version")                              \
    X(line_lost, "lost jobs for which a snapshot was chosen")                          \
    X(went_back, "slices in force that were taken back")                               \
    X(left_out, "shards with nothing that were left out")                              \
    X(fetched_before, "versions fetched by the layout before")                         \
    X(pin_waited, "consistent cuts that waited for a slice")                           \
    X(adopted_later, "stores made of shards in a later layout than the store's")       \
    X(opened_anew, "jobs opened anew since an older layout was in force again")        \
    X(clipped, "steps clipped")                                                        \
    X(attacks, "records that an attacker meddled with")                                \
    X(records_refused, "records refused, and their connections given up")              \
    X(handshakes_refused, "handshakes of an attacker refused")

enum seen {
#define X(name, text) SEEN_##name,
    SIM_SEEN(X)
#undef X
        SEEN_COUNT
};

#endif
