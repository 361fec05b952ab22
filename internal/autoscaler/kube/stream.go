// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// receiveBuffer is the most bytes of an answer that wait to be read. With Go's 4 MiB, the
// watches together keep more than 50 MiB of large objects while one is decoded.
const receiveBuffer = 64 << 10

// boundBuffers sets receiveBuffer. It must be called before the first request.
func boundBuffers(rt http.RoundTripper) {
	for {
		switch t := rt.(type) {
		case *http.Transport:
			t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: receiveBuffer}
			return
		case utilnet.RoundTripperWrapper:
			rt = t.WrappedRoundTripper()
		default:
			return
		}
	}
}

// turn lets one large object be decoded at a time: while it is decoded, it takes several
// times its size.
type turn chan struct{}

// maxTurn is the longest wait for a turn. An object whose reader is slow delays others by
// that much at most.
const maxTurn = time.Second

func newTurn() turn { return make(turn, 1) }

// take waits until no other large object is decoded. The result ends the turn.
func (t turn) take(ctx context.Context) (end func()) {
	timer := time.NewTimer(maxTurn)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return func() { <-t }
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}

// largeFrame is the size of a watch's event, in bytes, from which it is decoded in turn.
const largeFrame = 128 << 10

// maxFrame is the largest event, in bytes: client-go's bound.
const maxFrame = 16 << 20

// stream is a watch that keeps nothing of an event once it is decoded. The one of client-go
// keeps buffers of the size of the largest event, for each kind.
type stream struct {
	events chan watch.Event
	stop   context.CancelFunc
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// Stop implements watch.Interface.
func (s *stream) Stop() { s.stop() }

// decode decodes the object of an event. It keeps nothing of raw.
type decode func(kind watch.EventType, raw []byte) (runtime.Object, error)

// stream starts a watch. decode decodes the object of an event, and drops what nobody reads
// of it. An object that cannot be decoded ends the watch, as an error of the API server does.
func (c *Clients) stream(ctx context.Context, request *rest.Request, decode decode) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	body, err := request.Stream(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{events: make(chan watch.Event), stop: cancel}
	c.running.Go(func() {
		defer close(s.events)
		defer body.Close() //nolint:errcheck // of a read
		for r := bufio.NewReader(body); ; {
			event, err := c.nextEvent(ctx, r, decode)
			if err != nil {
				return
			}
			select {
			case s.events <- event:
			case <-ctx.Done():
				return
			}
		}
	})
	return s, nil
}

// buffers hold events while they are decoded. Nothing that is decoded refers to them.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// nextEvent reads and decodes an event. An error means that the answer has ended.
func (c *Clients) nextEvent(ctx context.Context, r *bufio.Reader, decode decode) (watch.Event, error) {
	head, err := r.Peek(1)
	if err != nil {
		return watch.Event{}, err
	}
	text := buffers.Get().(*bytes.Buffer) //nolint:errcheck,forcetypeassert // New's
	defer buffers.Put(text)
	text.Reset()
	var kind string
	var raw []byte
	var failed error
	if head[0] == '{' {
		if err := readLine(r, text); err != nil {
			return watch.Event{}, err
		}
		if text.Len() > largeFrame {
			defer c.decoding.take(ctx)()
		}
		var event struct {
			Type   string
			Object json.RawMessage
		}
		failed = json.Unmarshal(text.Bytes(), &event)
		kind, raw = event.Type, event.Object
	} else {
		var length [4]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return watch.Event{}, err
		}
		n := binary.BigEndian.Uint32(length[:])
		if n > maxFrame {
			return watch.Event{}, fmt.Errorf("an event of %d bytes, at most %d are read", n, maxFrame)
		}
		if n > largeFrame {
			defer c.decoding.take(ctx)()
		}
		if _, err := io.CopyN(text, r, int64(n)); err != nil {
			return watch.Event{}, err
		}
		kind, raw, failed = parts(text.Bytes())
	}
	var obj runtime.Object
	switch {
	case failed != nil:
	case kind == string(watch.Error):
		obj, _, failed = c.decoder.Decode(raw, nil, nil)
	default:
		obj, failed = decode(watch.EventType(kind), raw)
	}
	if failed != nil {
		kind, obj = string(watch.Error), &apierrors.NewInternalError(fmt.Errorf("decode a watch: %w", failed)).ErrStatus
	}
	return watch.Event{Type: watch.EventType(kind), Object: obj}, nil
}

// readLine reads a line.
func readLine(r *bufio.Reader, text *bytes.Buffer) error {
	for {
		part, err := r.ReadSlice('\n')
		text.Write(part)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		if text.Len() > maxFrame {
			return fmt.Errorf("an event of more than %d bytes", maxFrame)
		}
	}
}

// parts returns the type of a message, which is a metav1.WatchEvent, and its object.
func parts(message []byte) (kind string, raw []byte, err error) {
	name, err := field(message, 1)
	if err != nil {
		return "", nil, err
	}
	extension, err := field(message, 2)
	if err != nil {
		return "", nil, err
	}
	raw, err = field(extension, 1)
	return string(name), raw, err
}

// field returns a field of a message, whose type is bytes, text or a message; nil: it has
// none.
func field(message []byte, want protowire.Number) (value []byte, err error) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		message = message[n:]
		if number == want && kind == protowire.BytesType {
			value, n = protowire.ConsumeBytes(message)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		message = message[n:]
	}
	return value, nil
}

// protobufMagic begins an object in protobuf: a runtime.Unknown follows.
var protobufMagic = []byte("k8s\x00")

// decodeObject decodes an object of a kind. It does what the protobuf serializer does,
// without two copies of the object.
func (c *Clients) decodeObject(gvk schema.GroupVersionKind, raw []byte) (runtime.Object, error) {
	unknown, ok := bytes.CutPrefix(raw, protobufMagic)
	if !ok {
		obj, _, err := c.decoder.Decode(raw, nil, nil)
		return obj, err
	}
	obj, err := c.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	message, err := field(unknown, 2)
	if err != nil {
		return nil, err
	}
	x, ok := obj.(interface{ Unmarshal(message []byte) error })
	if !ok {
		return nil, fmt.Errorf("%s has no protobuf", gvk)
	}
	return obj, x.Unmarshal(message)
}

// newInformer makes an informer of a kind with a Go type, or of the metadata of one. Its
// watch is a stream, which drops what slim drops.
func (c *Clients) newInformer(slim toolscache.TransformFunc) func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	return func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
		list, ok := lw.(*toolscache.ListWatch)
		if request, gvk, err := c.watchRequest(obj); ok && err == nil { // else: client-go's
			sent := gvk
			if isMetadata(obj) {
				sent = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
			}
			decode := func(kind watch.EventType, raw []byte) (runtime.Object, error) {
				obj, err := c.decodeObject(sent, raw)
				if err != nil {
					return nil, err
				}
				if sent != gvk {
					obj.GetObjectKind().SetGroupVersionKind(gvk)
				}
				if kind == watch.Bookmark {
					return obj, nil
				}
				slimmed, err := slim(obj)
				if err != nil {
					return nil, err
				}
				return slimmed.(runtime.Object), nil //nolint:errcheck,forcetypeassert // as that of obj
			}
			list.WatchFuncWithContext = func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.Watch, options.AllowWatchBookmarks = true, true
				return c.stream(ctx, request().VersionedParams(&options, metav1.ParameterCodec), decode)
			}
		}
		return toolscache.NewSharedIndexInformer(lw, obj, resync, by)
	}
}

// isMetadata reports whether only the metadata of objects are watched.
func isMetadata(obj runtime.Object) bool {
	_, ok := obj.(*metav1.PartialObjectMetadata)
	return ok
}

// acceptMetadata asks for the metadata of objects only.
const acceptMetadata = runtime.ContentTypeProtobuf + asMetadata + "," + runtime.ContentTypeJSON + asMetadata

const asMetadata = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// watchRequest returns requests for objects of the kind of obj.
func (c *Clients) watchRequest(obj runtime.Object) (request func() *rest.Request, gvk schema.GroupVersionKind, err error) {
	if gvk, err = apiutil.GVKForObject(obj, c.scheme); err != nil {
		return nil, gvk, err
	}
	mapping, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, gvk, err
	}
	rc, err := apiutil.RESTClientForGVK(gvk, false, false, c.Config, serializer.NewCodecFactory(c.scheme), c.http)
	return func() *rest.Request {
		r := rc.Get().Resource(mapping.Resource.Resource)
		if isMetadata(obj) {
			r.SetHeader("Accept", acceptMetadata)
		}
		return r
	}, gvk, err
}
