// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"encoding/binary"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/custom_metrics"
)

// protoList writes a MetricValueList as its generated code does, in Kubernetes's
// envelope for messages (runtime.Unknown).
type protoList struct {
	buf     []byte
	version string
	object  []byte // the fields of an ObjectReference before its name
	rest    []byte // the fields of the ObjectReference after its name
	metric  []byte // the field for the metric's name
	window  []byte // the field for the window; empty: none
	scratch []byte
	number  [32]byte
}

// protoHead is the space for the message's head, which has the length of the items and
// is written last.
const protoHead = 128

// protoField appends a field of bytes.
func protoField(b []byte, tag byte, value []byte) []byte {
	b = binary.AppendUvarint(append(b, tag), uint64(len(value)))
	return append(b, value...)
}

func newProtoList(buf []byte, version string, q *query) listEncoder {
	l := &protoList{buf: append(buf, make([]byte, protoHead)...), version: version}
	l.object = protoField(protoField(nil, 0x0a, []byte("Pod")), 0x12, []byte(q.namespace))
	l.rest = protoField(nil, 0x22, nil) // uid
	l.rest = protoField(l.rest, 0x2a, []byte("v1"))
	l.rest = protoField(protoField(l.rest, 0x32, nil), 0x3a, nil) // resourceVersion, fieldPath
	name := []byte(q.metric)
	if version != "v1beta1" {
		name = protoField(nil, 0x0a, name) // a MetricIdentifier without a selector
	}
	l.metric = protoField(nil, 0x12, name)
	if q.window != nil {
		l.window = binary.AppendUvarint([]byte{0x20}, uint64(*q.window))
	}
	return l
}

func (l *protoList) add(pod string, at time.Time, v float64) {
	b := l.scratch[:0]
	nameLen := uint64(len(pod))
	b = binary.AppendUvarint(append(b, 0x0a), uint64(len(l.object)+1+uvarintLen(nameLen)+len(pod)+len(l.rest)))
	b = append(b, l.object...)
	b = binary.AppendUvarint(append(b, 0x1a), nameLen)
	b = append(b, pod...)
	b = append(b, l.rest...)
	b = append(b, l.metric...)
	second := uint64(at.Unix()) // whole seconds, as in JSON; nanos are 0
	b = binary.AppendUvarint(append(b, 0x1a), uint64(1+uvarintLen(second)+2))
	b = append(binary.AppendUvarint(append(b, 0x08), second), 0x10, 0)
	b = append(b, l.window...)
	number := appendQuantity(l.number[:0], v)
	n := uint64(len(number))
	b = binary.AppendUvarint(append(b, 0x2a), uint64(1+uvarintLen(n))+n)
	b = binary.AppendUvarint(append(b, 0x0a), n)
	b = append(b, number...)
	l.scratch = b
	l.buf = protoField(l.buf, 0x12, b)
}

func uvarintLen(n uint64) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutUvarint(b[:], n)
}

func (l *protoList) end() (body []byte, mediaType string) {
	meta := protoField(nil, 0x0a, []byte{0x0a, 0, 0x12, 0, 0x1a, 0}) // an empty ListMeta
	typ := protoField(protoField(nil, 0x0a, []byte(custom_metrics.GroupName+"/"+l.version)), 0x12, []byte("MetricValueList"))
	head := protoField([]byte("k8s\x00"), 0x0a, typ)
	head = binary.AppendUvarint(append(head, 0x12), uint64(len(meta)+len(l.buf)-protoHead))
	head = append(head, meta...)
	start := protoHead - len(head)
	copy(l.buf[start:], head)
	l.buf = append(l.buf, 0x1a, 0, 0x22, 0) // contentEncoding, contentType
	return l.buf[start:], runtime.ContentTypeProtobuf
}
