// SPDX-License-Identifier: Apache-2.0

package windows

// The estimated memory of a pod in the index, in bytes.
const (
	recordBytes = 320 // without its keys
	// keyBytes is that of one key, without its text: its entries in the record and in
	// the set, and a set of its own for a value that no other pod has.
	keyBytes = 160
	// goneBytes is that of a deleted pod, beside the pod itself, which only the index
	// keeps.
	goneBytes = 512
)

// podBudget limits the memory of the index of pods. Without room, the namespaces with
// the most bytes lose pods, down to the same size.
type podBudget struct {
	limit   int64
	total   int64
	bytes   map[string]int64 // by namespace
	refused uint64           // pods that were left out, since the start
	short   bool             // pods are left out now
}

func (b *podBudget) reset() { b.total, b.bytes, b.short = 0, map[string]int64{}, false }

func (b *podBudget) add(namespace string, n int64) {
	b.total += n
	if b.bytes[namespace] += n; b.bytes[namespace] == 0 {
		delete(b.bytes, namespace)
	}
}

// largest returns the namespace with the most bytes.
func (b *podBudget) largest() (namespace string, bytes int64) {
	for ns, n := range b.bytes {
		if n > bytes || n == bytes && ns < namespace {
			namespace, bytes = ns, n
		}
	}
	return namespace, bytes
}

// hasRoomAgain reports whether pods are left out although a quarter of the limit is
// free.
func (b *podBudget) hasRoomAgain() bool { return b.short && b.total < b.limit-b.limit/4 }
