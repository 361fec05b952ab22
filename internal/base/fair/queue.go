// SPDX-License-Identifier: Apache-2.0

package fair

// Queue is a queue in which the namespaces take turns, so that one with many items delays
// another one's by one item. It is not safe for concurrent use.
type Queue[T any] struct {
	items map[string][]T
	order []string // the namespaces of items, next one first
	n     int
}

// Put appends an item to those of a namespace.
func (q *Queue[T]) Put(namespace string, item T) {
	if q.items == nil {
		q.items = map[string][]T{}
	}
	own := q.items[namespace]
	if len(own) == 0 {
		q.order = append(q.order, namespace)
	}
	q.items[namespace] = append(own, item)
	q.n++
}

// Take removes the first item of the namespace whose turn it is. It reports false if there
// is none.
func (q *Queue[T]) Take() (item T, ok bool) {
	if len(q.order) == 0 {
		return item, false
	}
	namespace := q.order[0]
	q.order = q.order[1:]
	own := q.items[namespace]
	item, own[0] = own[0], item // for the garbage collector
	if q.n--; len(own) > 1 {
		q.items[namespace] = own[1:]
		q.order = append(q.order, namespace)
	} else {
		delete(q.items, namespace)
	}
	return item, true
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.n }

// LenOf returns the number of items of a namespace.
func (q *Queue[T]) LenOf(namespace string) int { return len(q.items[namespace]) }
