// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	k8sjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restclientwatch "k8s.io/client-go/rest/watch"
)

func schemeDecoder() k8sruntime.Decoder {
	return k8sruntime.WithoutVersionDecoder{Decoder: serializer.NewCodecFactory(Scheme()).UniversalDeserializer()}
}

// encode returns an event as the API server sends it, as a message or as a line.
func encode(t testing.TB, message bool, kind watch.EventType, obj k8sruntime.Object) []byte {
	t.Helper()
	var raw bytes.Buffer
	event := metav1.WatchEvent{Type: string(kind)}
	if !message {
		text, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		event.Object.Raw = text
		line, err := json.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		return append(line, '\n')
	}
	scheme := Scheme()
	if err := protobuf.NewSerializer(scheme, scheme).Encode(obj, &raw); err != nil {
		t.Fatal(err)
	}
	event.Object.Raw = raw.Bytes()
	text, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

func testClients() *Clients {
	return &Clients{scheme: Scheme(), decoder: schemeDecoder(), decoding: newTurn()}
}

// decode decodes what is not said to be anything else as a Deployment.
func (c *Clients) decode(_ watch.EventType, raw []byte) (k8sruntime.Object, error) {
	return c.decodeObject(appsv1.SchemeGroupVersion.WithKind("Deployment"), raw)
}

func deployment(name string, size int) *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"large": strings.Repeat("x", size)}},
	}
}

// Events are the same as messages and as lines, large or small, however their bytes arrive.
func TestEvents(t *testing.T) {
	c := testClients()
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: 410, Reason: metav1.StatusReasonExpired}
	for _, message := range []bool{false, true} {
		var all []byte
		for kind, obj := range map[watch.EventType]k8sruntime.Object{watch.Added: deployment("a", 10), watch.Modified: deployment("b", largeFrame), watch.Error: status} {
			all = append(all, encode(t, message, kind, obj)...)
		}
		for name, split := range map[string]func(io.Reader) io.Reader{"as they are": func(r io.Reader) io.Reader { return r }, "one by one": iotest.OneByteReader, "half": iotest.HalfReader} {
			r, got := bufio.NewReader(split(bytes.NewReader(all))), map[string]int{}
			for {
				e, err := c.nextEvent(t.Context(), r, c.decode)
				if err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				switch x := e.Object.(type) {
				case *appsv1.Deployment:
					got[fmt.Sprint(e.Type, x.Kind, x.Name)] = len(x.Annotations["large"])
				case *metav1.Status:
					got[fmt.Sprint(e.Type, x.Kind, x.Reason)] = int(x.Code)
				}
			}
			if diff := cmp.Diff(map[string]int{"ADDEDa": 10, "MODIFIEDb": largeFrame, "ERRORExpired": 410}, got); diff != "" {
				t.Errorf("messages %v, bytes %s: %s", message, name, diff)
			}
		}
	}
	if _, err := c.nextEvent(t.Context(), bufio.NewReader(bytes.NewReader([]byte{1, 0, 0, 1})), c.decode); err == nil {
		t.Error("an event of more than 16 MiB is read")
	}
}

// Whatever the answer, a watch ends without a panic, and an event has an object.
func FuzzEvents(f *testing.F) {
	for _, message := range []bool{false, true} {
		f.Add(encode(f, message, watch.Added, deployment("a", 3)))
		f.Add(append(encode(f, message, watch.Bookmark, deployment("a", 3)), encode(f, message, watch.Error, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}})...))
	}
	c := testClients()
	f.Fuzz(func(t *testing.T, text []byte) {
		r := bufio.NewReader(bytes.NewReader(text))
		for {
			e, err := c.nextEvent(t.Context(), r, c.decode)
			if err != nil {
				return
			}
			if e.Object == nil {
				t.Fatalf("%q: an event without an object", text)
			}
		}
	})
}

// A watch keeps nothing of a large event.
func TestLargeEventsAreNotKept(t *testing.T) {
	const streams, size = 8, 1 << 20
	c := testClients()
	heap := func() int {
		for range 3 { // a pool is emptied by the second one
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for _, message := range []bool{false, true} {
		large := encode(t, message, watch.Added, deployment("a", size))
		readers := make([]*bufio.Reader, streams)
		before := heap()
		for i := range readers {
			readers[i] = bufio.NewReader(bytes.NewReader(large))
			if _, err := c.nextEvent(t.Context(), readers[i], c.decode); err != nil {
				t.Fatal(err)
			}
		}
		if more := heap() - before; more > size/4 {
			t.Errorf("messages %v: after %d events of 1 MiB, %d bytes are kept", message, streams, more)
		}
		runtime.KeepAlive(readers)
	}
}

// Every kind of the scheme is the same by decodeObject as by its serializer.
func TestObjectsAreDecodedAsTheirSerializerDoes(t *testing.T) {
	c, tried := testClients(), 0
	for gvk := range c.scheme.AllKnownTypes() {
		obj, err := c.scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		x, ok := obj.(metav1.Object)
		if !ok {
			continue
		}
		x.SetName("a")
		x.SetLabels(map[string]string{"l": gvk.Kind})
		for _, serializer := range []k8sruntime.Encoder{protobuf.NewSerializer(c.scheme, c.scheme), k8sjson.NewSerializerWithOptions(k8sjson.DefaultMetaFactory, c.scheme, c.scheme, k8sjson.SerializerOptions{})} {
			var raw bytes.Buffer
			obj.GetObjectKind().SetGroupVersionKind(gvk)
			if err := serializer.Encode(obj, &raw); err != nil {
				continue // ours have no protobuf
			}
			got, err := c.decodeObject(gvk, raw.Bytes())
			if err != nil {
				t.Fatalf("%s: %v", gvk, err)
			}
			obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			if diff := cmp.Diff(obj, got); diff != "" {
				t.Errorf("%s: %s", gvk, diff)
			}
			tried++
		}
	}
	if tried < 50 {
		t.Errorf("%d were tried", tried)
	}
}

// An event takes few times its size, beside what client-go's own watch takes for it. Run it
// with -benchmem.
func BenchmarkLargeEvent(b *testing.B) {
	c := testClients()
	for _, message := range []bool{false, true} {
		large := encode(b, message, watch.Added, deployment("a", 1<<20))
		b.Run(fmt.Sprintf("message=%v", message), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.nextEvent(b.Context(), bufio.NewReader(bytes.NewReader(large)), c.decode); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("client-go message=%v", message), func(b *testing.B) {
			serializer := scheme.Codecs.SupportedMediaTypes()[0]
			if message {
				i := slices.IndexFunc(scheme.Codecs.SupportedMediaTypes(), func(m k8sruntime.SerializerInfo) bool { return m.MediaType == k8sruntime.ContentTypeProtobuf })
				serializer = scheme.Codecs.SupportedMediaTypes()[i]
			}
			b.ReportAllocs()
			for b.Loop() { // a watch of its own, as after each list
				body := serializer.StreamSerializer.NewFrameReader(io.NopCloser(bytes.NewReader(large)))
				_, _, err := restclientwatch.NewDecoder(streaming.NewDecoder(body, serializer.StreamSerializer), scheme.Codecs.UniversalDeserializer()).Decode()
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Large events are decoded one at a time. One that is slow, or has gone, does not keep others.
func TestLargeEventsTakeTurns(t *testing.T) {
	c := &Clients{decoding: newTurn()}
	for _, message := range []bool{false, true} {
		large := encode(t, message, watch.Added, deployment("a", largeFrame))
		synctest.Test(t, func(t *testing.T) {
			c.decoding = newTurn()
			read := func(ctx context.Context, slow time.Duration) (began time.Time) {
				_, err := c.nextEvent(ctx, bufio.NewReader(bytes.NewReader(large)), func(watch.EventType, []byte) (k8sruntime.Object, error) {
					began = time.Now()
					time.Sleep(slow)
					return deployment("a", 0), nil
				})
				if err != nil {
					t.Error(err)
				}
				return began
			}
			began := time.Now()
			go read(t.Context(), maxTurn/2)
			synctest.Wait()
			if w := read(t.Context(), 0).Sub(began); w != maxTurn/2 {
				t.Errorf("messages %v: the second one waited %v, want until the first one is decoded", message, w)
			}
			began = time.Now()
			go read(t.Context(), time.Hour)
			synctest.Wait()
			if w := read(t.Context(), 0).Sub(began); w != maxTurn {
				t.Errorf("messages %v: beside a slow one it waited %v, want %v", message, w, maxTurn)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			began = time.Now()
			if w := read(ended, 0).Sub(began); w != 0 {
				t.Errorf("messages %v: a watch that has ended waited %v", message, w)
			}
			time.Sleep(time.Hour)
			if len(c.decoding) > 0 {
				t.Errorf("messages %v: nobody decodes, and somebody has the turn", message)
			}
		})
	}
}

// A connection says that it keeps few bytes of each answer: SETTINGS_INITIAL_WINDOW_SIZE.
func TestBuffersAreBounded(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	found := make(chan uint32, 1)
	ctx, cancel := context.WithCancel(t.Context())
	server.TLS = &tls.Config{NextProtos: []string{"h2"}}
	server.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": func(_ *http.Server, c *tls.Conn, _ http.Handler) {
		head := make([]byte, 24+9) // the preface, and the head of the first frame
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		settings := make([]byte, int(head[24])<<16|int(head[25])<<8|int(head[26]))
		_, _ = io.ReadFull(c, settings)
		for ; len(settings) >= 6; settings = settings[6:] {
			if binary.BigEndian.Uint16(settings) == 4 {
				found <- binary.BigEndian.Uint32(settings[2:])
			}
		}
		cancel() // the request has no answer
	}}
	server.StartTLS()
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {"token": "x"}}],
		"clusters": [{"name": "x", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Config{Kubeconfig: kubeconfig, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Set.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("the server that does not answer has answered")
	}
	if n := <-found; n != receiveBuffer {
		t.Errorf("%d bytes, want %d", n, receiveBuffer)
	}
}
