// Records and their encodings: six strategies, all lossless.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"io"
	"math"
)

// Record is the experiment's user record: 15 fields.
type Record struct {
	ID          int64   `json:"id"`
	Username    string  `json:"username"`
	Email       string  `json:"email"`
	FirstName   string  `json:"first_name"`
	LastName    string  `json:"last_name"`
	Age         int32   `json:"age"`
	Height      float32 `json:"height"`
	Weight      float32 `json:"weight"`
	Balance     float64 `json:"balance"`
	IsActive    bool    `json:"is_active"`
	CreatedAt   int64   `json:"created_at"`
	UpdatedAt   int64   `json:"updated_at"`
	LoginCount  int32   `json:"login_count"`
	Score       float64 `json:"score"`
	Description string  `json:"description"`
}

var errDamaged = errors.New("a record is damaged")

// Field names in storage order. Strings come first, so that fixed-size fields have fixed offsets from the end.
var names = []string{
	"username", "email", "first_name", "last_name", "description",
	"id", "age", "height", "weight", "balance", "is_active", "created_at", "updated_at", "login_count", "score",
}

// Sizes: fixedBytes is the total of the fixed-size fields (8+4+4+4+8+1+8+8+4+8); balanceFromEnd is the balance's offset
// from the end.
const (
	stringCount    = 5
	fixedBytes     = 57
	balanceFromEnd = 37
)

func (r *Record) strings() []*string {
	return []*string{&r.Username, &r.Email, &r.FirstName, &r.LastName, &r.Description}
}

// field returns the bytes of one field, without its name.
func (r *Record) field(at int) []byte {
	if at < stringCount {
		return []byte(*r.strings()[at])
	}
	le := binary.LittleEndian
	switch names[at] {
	case "id":
		return le.AppendUint64(nil, uint64(r.ID))
	case "age":
		return le.AppendUint32(nil, uint32(r.Age))
	case "height":
		return le.AppendUint32(nil, math.Float32bits(r.Height))
	case "weight":
		return le.AppendUint32(nil, math.Float32bits(r.Weight))
	case "balance":
		return le.AppendUint64(nil, math.Float64bits(r.Balance))
	case "is_active":
		if r.IsActive {
			return []byte{1}
		}
		return []byte{0}
	case "created_at":
		return le.AppendUint64(nil, uint64(r.CreatedAt))
	case "updated_at":
		return le.AppendUint64(nil, uint64(r.UpdatedAt))
	case "login_count":
		return le.AppendUint32(nil, uint32(r.LoginCount))
	}
	return le.AppendUint64(nil, math.Float64bits(r.Score))
}

func (r *Record) setField(name string, b []byte) error {
	le := binary.LittleEndian
	for at := range stringCount {
		if names[at] == name {
			*r.strings()[at] = string(b)
			return nil
		}
	}
	want := map[string]int{"is_active": 1, "age": 4, "height": 4, "weight": 4, "login_count": 4}[name]
	if want == 0 {
		want = 8
	}
	if len(b) != want {
		return errDamaged
	}
	switch name {
	case "id":
		r.ID = int64(le.Uint64(b))
	case "age":
		r.Age = int32(le.Uint32(b))
	case "height":
		r.Height = math.Float32frombits(le.Uint32(b))
	case "weight":
		r.Weight = math.Float32frombits(le.Uint32(b))
	case "balance":
		r.Balance = math.Float64frombits(le.Uint64(b))
	case "is_active":
		r.IsActive = b[0] == 1
	case "created_at":
		r.CreatedAt = int64(le.Uint64(b))
	case "updated_at":
		r.UpdatedAt = int64(le.Uint64(b))
	case "login_count":
		r.LoginCount = int32(le.Uint32(b))
	case "score":
		r.Score = math.Float64frombits(le.Uint64(b))
	default:
		return errDamaged
	}
	return nil
}

// appendBinary appends length-prefixed strings, then the fixed-size fields, without names.
func (r *Record) appendBinary(out []byte) []byte {
	le := binary.LittleEndian
	for _, s := range r.strings() {
		out = le.AppendUint32(out, uint32(len(*s)))
		out = append(out, *s...)
	}
	out = le.AppendUint64(out, uint64(r.ID))
	out = le.AppendUint32(out, uint32(r.Age))
	out = le.AppendUint32(out, math.Float32bits(r.Height))
	out = le.AppendUint32(out, math.Float32bits(r.Weight))
	out = le.AppendUint64(out, math.Float64bits(r.Balance))
	if r.IsActive {
		out = append(out, 1)
	} else {
		out = append(out, 0)
	}
	out = le.AppendUint64(out, uint64(r.CreatedAt))
	out = le.AppendUint64(out, uint64(r.UpdatedAt))
	out = le.AppendUint32(out, uint32(r.LoginCount))
	return le.AppendUint64(out, math.Float64bits(r.Score))
}

func (r *Record) readBinary(b []byte) error {
	le := binary.LittleEndian
	for _, s := range r.strings() {
		if len(b) < 4 {
			return errDamaged
		}
		length := int(le.Uint32(b))
		if len(b) < 4+length {
			return errDamaged
		}
		*s = string(b[4 : 4+length])
		b = b[4+length:]
	}
	if len(b) != fixedBytes {
		return errDamaged
	}
	r.ID = int64(le.Uint64(b))
	r.Age = int32(le.Uint32(b[8:]))
	r.Height = math.Float32frombits(le.Uint32(b[12:]))
	r.Weight = math.Float32frombits(le.Uint32(b[16:]))
	r.Balance = math.Float64frombits(le.Uint64(b[20:]))
	r.IsActive = b[28] == 1
	r.CreatedAt = int64(le.Uint64(b[29:]))
	r.UpdatedAt = int64(le.Uint64(b[37:]))
	r.LoginCount = int32(le.Uint32(b[45:]))
	r.Score = math.Float64frombits(le.Uint64(b[49:]))
	return nil
}

// encoding converts a record to one value and back; balance decodes one field alone.
type encoding struct {
	encode  func(*Record) ([]byte, error)
	decode  func([]byte) (Record, error)
	balance func([]byte) (float64, error)
}

var encodings = map[string]encoding{
	"binary": {
		encode: func(r *Record) ([]byte, error) { return r.appendBinary(nil), nil },
		decode: func(b []byte) (r Record, err error) { err = r.readBinary(b); return r, err },
		balance: func(b []byte) (float64, error) {
			if len(b) < fixedBytes {
				return 0, errDamaged
			}
			return math.Float64frombits(binary.LittleEndian.Uint64(b[len(b)-balanceFromEnd:])), nil
		},
	},
	"names": {encode: encodeNames, decode: decodeNames, balance: balanceOfNames},
	"json": {
		encode: func(r *Record) ([]byte, error) { return json.Marshal(r) },
		decode: func(b []byte) (r Record, err error) { err = json.Unmarshal(b, &r); return r, err },
		balance: func(b []byte) (float64, error) {
			var one struct {
				Balance float64 `json:"balance"`
			}
			err := json.Unmarshal(b, &one)
			return one.Balance, err
		},
	},
	// As in the original experiment: every record repeats its type description.
	"gob": {
		encode: func(r *Record) ([]byte, error) {
			var out bytes.Buffer
			err := gob.NewEncoder(&out).Encode(r)
			return out.Bytes(), err
		},
		decode: func(b []byte) (r Record, err error) {
			err = gob.NewDecoder(bytes.NewReader(b)).Decode(&r)
			return r, err
		},
		balance: func(b []byte) (float64, error) {
			var one struct{ Balance float64 }
			err := gob.NewDecoder(bytes.NewReader(b)).Decode(&one)
			return one.Balance, err
		},
	},
}

// encodeNames writes, for each field: name length, name, value length, value.
func encodeNames(r *Record) ([]byte, error) {
	out := make([]byte, 0, 448)
	for at, name := range names {
		field := r.field(at)
		out = append(out, byte(len(name)))
		out = append(out, name...)
		out = binary.LittleEndian.AppendUint16(out, uint16(len(field)))
		out = append(out, field...)
	}
	return out, nil
}

func eachNamed(b []byte, each func(name string, field []byte) error) error {
	for len(b) > 0 {
		end := 1 + int(b[0])
		if len(b) < end+2 {
			return errDamaged
		}
		name := b[1:end]
		length := int(binary.LittleEndian.Uint16(b[end:]))
		if len(b) < end+2+length {
			return errDamaged
		}
		if err := each(string(name), b[end+2:end+2+length]); err != nil {
			return err
		}
		b = b[end+2+length:]
	}
	return nil
}

func decodeNames(b []byte) (r Record, err error) {
	err = eachNamed(b, r.setField)
	return r, err
}

func balanceOfNames(b []byte) (float64, error) {
	var r Record
	err := eachNamed(b, func(name string, field []byte) error {
		if name != "balance" {
			return nil
		}
		if err := r.setField(name, field); err != nil {
			return err
		}
		return io.EOF
	})
	if err == io.EOF {
		return r.Balance, nil
	}
	return 0, errDamaged
}
