/* Known bugs, of which one at a time is put into a program: the program is built with one of these macros
 * set to a number, and then its test has to fail. Each bug is one line, at a place where a tired programmer
 * would make the mistake. Daemons and the library are always built without a bug, so every ..MUTANT(n)
 * folds to 0 there. */
#ifndef CAIRN_BASE_MUTANT_H
#define CAIRN_BASE_MUTANT_H

/* ==== the pure machines: cairn-sim-mutant-<n>, which the simulator catches (tests/sim) ==== */

#ifndef CAIRN_MUTANT
#define CAIRN_MUTANT 0
#endif
#define MUTANT(n) (CAIRN_MUTANT == (n))

/*  1  a duplicate that was folded is received and folded again
 *  2  contributions are folded in the order they arrive
 *  3  the epoch and round of a chunk are not checked
 *  4  an APPLY that only some shards have is forgotten on an epoch change
 *  5  a carry between the limbs of the exact sum is lost
 *  6  a new incarnation starts its round numbers where the old one started
 *  7  a worker ignores the window (and the shard's refusals with it)
 *  8  a chunk that no worker contributed keeps its old sum
 *  9  a prepared shard gives its round up on a fence
 * 10  a skipped round advances the step
 * 11  the weight of the first contributor counts for all
 * 12  after a reconnect a worker does not send unanswered messages again
 * 13  the round opens for a shard while it still drains the void one
 * 14  workers hear "committed" when the first shard has published
 * 15  the loss scale is forgotten by a new coordinator
 * 16  the end of a micro-batch counts as its last chunk: late chunks are absent
 * 17  a duplicate of a chunk that is being received is refused when the round is void
 * 18  a worker that reconnected gets its GRANT while an earlier receive from it is under way
 * 19  a GRANT of a new endpoint only sets the window: the worker waits for answers that the lost one sent
 * 20  in a void round nothing is asked again after the shard's endpoint was lost
 * 21  tensors that a member does not hold count as passed in its first micro-batch only
 * 22  a chunk that landed and waits for other contributions is forgotten
 * 23  a skipped round takes the client state that was sent with it
 * 24  a round is decided before its rank 0 has given the client state
 * 25  a relay adds the next micro-batch to the current sum: it does not wait for the end of this one
 * 26  a relay passes a sum on while the last contribution is being added
 * 27  a relay commits with the weight of its first member
 * 28  a relay's sum from a void round is the start of the next round's sum
 * 29  a relay's end of a micro-batch counts the chunks that it passed on in earlier ones, too
 * 30  a relay continues with the sum that it has passed on
 * 31  chunks that arrive again after a relay has committed are refused
 * 32  a relay ends micro-batches although nobody knows whether they exist
 * 33  an end that was refused for now is not sent again
 * 34  a newcomer of the same name gets a shard's seat while that shard lives
 * 35  the shard that holds the state does not get its seat back from an empty newcomer
 * 36  an empty process counts as the shard whose name it has
 * 37  the result of a round is forgotten with the next one
 * 38  a fence of the epoch that a shard is in is obeyed
 * 39  at the step's deadline members that wait for others are dropped, too
 * 40  a shard obeys the coordinator of another store
 * 41  a store with older epochs than its shards' acts on the state that they hold
 * 42  a store that was rebuilt begins with the epoch of its first shard
 * 43  a store that was rebuilt begins with a round number that was used
 * 44  the number of skips is forgotten by a new coordinator
 * 45  a round opens after too many skips in a row
 * 46  new terms do not let it continue after too many skips in a row
 * 47  the first of a launch begins without the others of the launch
 * 48  a member that waits for workers_min does not hear that it was lowered
 * 49  a member that reported it is at work is dropped at the step's deadline, too
 * 50  the learning rates that the trainer gave are forgotten by a new coordinator
 * 51  the last member to commit gives the learning rate of a driven group, not the round's rank 0
 * 52  a skipped round takes the learning rates that were sent with it
 * 53  a relay's fold waits for a buffer although no answer of the owner will free one
 * 54  an owner holds more of a relay's buffers than it has chunks
 * 55  a chunk that is being sent to one owner keeps a buffer from another
 * 56  a buffer of a void round is free while a fold writes it
 * 57  a fold that waits for a buffer is forgotten when a later fold waits, too
 * 58  the time that a relay has had no room continues although it had room in between
 * 59  after a loss a round opens without the members that it waits for
 * 60  an amendment does not end the effects of a lost worker
 * 61  a worker that gets no micro-batch counts as a contributor
 * 62  a worker takes micro-batches by its rank in the job, not by its place among the contributors
 * 63  another layout comes into force while a round is open
 * 64  a layout is not durable with its epoch
 * 65  a shard that has left is awaited
 * 66  a shard is prepared while state is on its way to it
 * 67  a shard that joins keeps the version that it was created with
 * 68  a slice is settled when the first shard is complete
 * 69  a layout comes into force when the first shard has prepared it
 * 70  a new coordinator takes a slice for settled
 * 71  a shard counts as complete in a layout when it was in the one before
 * 72  the sums of a void round are reported when the state is there
 * 73  a layout that was withdrawn comes into force all the same
 * 74  a shard that continues with other chunks forgets the last decision
 * 75  a shard that joins must know the last round, as any other
 * 76  a shard that has left is owed the ends of micro-batches, as any other
 * 77  the version at which a layout came into force is reported as that of the layout before
 * 78  the steps that passed tensors by are forgotten by a new coordinator
 * 79  a tensor is left alone if no worker touched the part that one shard has of it
 * 80  the update of a tensor that missed steps uses the job's step
 * 81  a member that attaches again does not take the newest version from the layout that it is told
 * 82  a member continues with a later layout than the one in force
 * 83  a chunk that has to be received takes a slot that has no memory
 * 84  chunks that were sent to be read in place are still counted after the connection was lost
 * 85  a chunk that may hold a slot with memory is forgotten when it is sent to be read in place
 * 86  a new generation is begun while amended terms are being stored
 * 87  a parking is refused while a slice of a re-sharding moves
 * 88  a slice moves although the job is parked
 * 89  a worker joins a job while the job is made
 * 90  a job is parked while the shards prepare its snapshot
 * 91  a job cannot be restored while a slice of a re-sharding moves
 * 92  a slice moves while the state of a snapshot is pinned
 * 93  rounds open while a new generation waits for the last one to end
 * 94  a parked job cannot be saved
 * 95  rounds open although a part of the job is parked
 * 96  a snapshot is pinned while a slice moves
 * 97  two operations that wait for each other wait for ever
 * 98  a job is restored while it is being made
 * 99  shards that have joined wait for an operation that waits for the layout
 * 100  the process after a prepared shard's does not know that it is prepared
 * 101  an update that another process ended counts as not made
 * 102  the last decision dies with the process
 * 103  the last fence dies with the process
 * 104  the newest round dies with the process
 * 105  a shard whose process died before it heard that a slice is settled is not told again
 * 106  an owner's REDUCED counts although its standby has not the sums
 * 107  an owner's PUBLISHED counts although its standby has not carried out the decision
 * 108  an owner goes on alone before the store says that its standby is not in step
 * 109  a standby that is not in step takes a place
 * 110  a standby is the owner although the store could not be told so
 * 111  an owner's answer to a fence counts without its standby's
 * 112  a row that says that a standby is in step counts as absent while it is written
 * 113  a new coordinator takes a standby for one that is in step with the owner that is there
 * 114  a standby is given up while it alone has the part
 * 115  a row that could not be removed counts as removed
 * 116  a decision that reached a standby alone is forgotten
 * 117  a standby is late as soon as its owner would be missed
 * 118  a report of a round that will be void is looked at
 * 119  a log applies the round that the snapshot under it has already
 * 120  a prepared round is forgotten where the log goes on in a new segment
 * 121  the decision before a round that was torn is forgotten
 * 122  of a log the segment goes that has the sums of a round prepared at its snapshot
 * 123  a renewed lease counts from the answer of the store
 * 124  a leader's key counts as made although the answer was lost
 * 125  a write counts as not made when the lease ends before its answer
 * 126  a leader that does not know what it has written renews its lease, and goes on
 * 127  a write counts as not made when the last attempt was refused, whatever became of those before it
 * 128  two standbys take the place of one owner
 * 129  a report of an owner counts when one of its standbys has reported the same
 * 130  a job that goes back again forgets where it went back before
 * 131  a manifest says where the job turned last, and not where it turned first
 * 132  of more turns than are kept what lies before the oldest is not left out */
#define CAIRN_MUTANT_COUNT 132

/* ==== order on a GPU: cairn-home-seeds-mutant-<n>, which the emulated card catches (tests/gpu) ==== */

#ifndef CAIRN_GPU_MUTANT
#define CAIRN_GPU_MUTANT 0
#endif
#define GPU_MUTANT(n) (CAIRN_GPU_MUTANT == (n))

/*  1  an event is recorded in the stream that waits for it
 *  2  kernels do not wait for the load
 *  3  an event is waited for before it is recorded
 *  4  copies out do not wait for the kernels
 *  5  the event behind a slice is not recorded
 *  6  the host does not wait for a slice
 *  7  the event behind a slice is recorded behind its kernels
 *  8  the event behind a slice is recorded before its copies to pinned memory
 *  9  kernels do not wait for the copies from pinned memory
 * 10  copies out wait for the load, not for the kernels
 * 11  counts are zeroed beside the kernels that count
 * 12  memory is handed out while it is being zeroed
 * 13  a run returns while its last slice is under way
 * 14  the event of another slice is used as that of the load
 * 15  a run that fails returns while its work is under way
 * 16  a run that fails waits for its kernels alone, not for its copies out
 * 17  the event behind zeroed memory is recorded in another stream
 * 18  a list fills a slice that the list ahead of it still uses */
#define CAIRN_GPU_MUTANT_COUNT 18

/* ==== order in the client library: test_device_wait_mutant_<n> (tests/gpu) ==== */

#ifndef CAIRN_DEVICE_MUTANT
#define CAIRN_DEVICE_MUTANT 0
#endif
#define DEVICE_MUTANT(n) (CAIRN_DEVICE_MUTANT == (n))

/*  1  a thread that sets a word maps memory while a stream waits for one
 *  2  a stream begins to wait while memory is being mapped
 *  3  a word that is set counts as one that is waited for */
#define CAIRN_DEVICE_MUTANT_COUNT 3

/* ==== published copies: test_shard_bring_mutant_<n> (tests/gpu) ==== */

#ifndef CAIRN_READ_MUTANT
#define CAIRN_READ_MUTANT 0
#endif
#define READ_MUTANT(n) (CAIRN_READ_MUTANT == (n))

/*  1  a chunk counts as brought before its copy is done
 *  2  chunks brought for the version before count for the version that is written over it */
#define CAIRN_READ_MUTANT_COUNT 2

#endif
