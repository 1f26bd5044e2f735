#include "machine/measurement_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/trust.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr int kBusyMs = 10000;
// Each new machine, limit or build adds its own rows; the least recently used are removed.
constexpr int64_t kMaxMachines = 64;

struct StoreError {
  int code;
  std::string what;
  // SQLITE_ERROR means a table with another schema: not ours, so treated as broken.
  bool corrupt() const { return code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR; }
};

class Database {
 public:
  Database(const std::string& name, int flags) {
    const int code = sqlite3_open_v2(name.c_str(), &handle_, flags | SQLITE_OPEN_FULLMUTEX | SQLITE_OPEN_URI, nullptr);
    if (code != SQLITE_OK) {
      StoreError error{code & 0xff, handle_ ? sqlite3_errmsg(handle_) : sqlite3_errstr(code)};
      sqlite3_close(handle_);
      throw error;
    }
    sqlite3_busy_timeout(handle_, kBusyMs);
  }
  ~Database() { sqlite3_close(handle_); }
  Database(const Database&) = delete;

  void run(const char* sql) { check(sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr)); }
  void check(int code) const {
    if (code != SQLITE_OK && code != SQLITE_ROW && code != SQLITE_DONE) throw StoreError{code & 0xff, sqlite3_errmsg(handle_)};
  }
  bool read_only() const { return sqlite3_db_readonly(handle_, "main") == 1; }
  int64_t changes() const { return sqlite3_changes(handle_); }
  sqlite3* handle() const { return handle_; }

 private:
  sqlite3* handle_ = nullptr;
};

class Statement {
 public:
  template <class... Values>
  Statement(Database& db, const char* sql, const Values&... values) : db_(db) {
    db.check(sqlite3_prepare_v2(db.handle(), sql, -1, &handle_, nullptr));
    int at = 0;
    (bind(++at, values), ...);
  }
  ~Statement() { sqlite3_finalize(handle_); }
  Statement(const Statement&) = delete;

  bool step() {
    const int code = sqlite3_step(handle_);
    db_.check(code);
    return code == SQLITE_ROW;
  }
  std::string text(int column) const {
    const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
    return data ? std::string(data, size_t(sqlite3_column_bytes(handle_, column))) : std::string();
  }
  double real(int column) const { return sqlite3_column_double(handle_, column); }
  int64_t integer(int column) const { return sqlite3_column_int64(handle_, column); }

 private:
  void bind(int at, std::string_view value) { db_.check(sqlite3_bind_text64(handle_, at, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8)); }
  void bind(int at, double value) { db_.check(sqlite3_bind_double(handle_, at, value)); }
  void bind(int at, int64_t value) { db_.check(sqlite3_bind_int64(handle_, at, value)); }

  Database& db_;
  sqlite3_stmt* handle_ = nullptr;
};

// Takes the write lock when it begins: a transaction that upgrades at its first write can be refused without waiting.
class Transaction {
 public:
  explicit Transaction(Database& db) : db_(db) { db_.run("BEGIN IMMEDIATE"); }
  ~Transaction() {
    if (open_) sqlite3_exec(db_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  void commit() {
    db_.run("COMMIT");
    open_ = false;
  }

 private:
  Database& db_;
  bool open_ = true;
};

// Only one process at a time creates a store or moves a broken one aside. If the holder is suspended, others wait only for a while.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& file) : fd_(open((file.string() + ".lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) {
    for (int waited = 0; fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && waited < kBusyMs; waited += 5)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;

 private:
  int fd_;
};

void make_tables(Database& db) {
  db.run(
      "CREATE TABLE IF NOT EXISTS machine(id TEXT PRIMARY KEY, description TEXT NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;"
      "CREATE TABLE IF NOT EXISTS measurement(machine TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, spread REAL NOT NULL,"
      " samples INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(machine, key)) WITHOUT ROWID;");
}

std::unique_ptr<Database> open_memory() {
  auto db = std::make_unique<Database>(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  make_tables(*db);
  return db;
}

std::unique_ptr<Database> open_file(const fs::path& file) {
  // SQLite refuses links in every part of the path, but a link to the folder is the user's choice.
  std::error_code error;
  const fs::path folder = fs::canonical(file.parent_path(), error);
  auto db = std::make_unique<Database>((error ? file : folder / file.filename()).string(), SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW);
  if (db->read_only()) throw StoreError{SQLITE_READONLY, "it is not writable"};
  // Readers do not wait for writers, and a commit does not wait for the disk; if the file system does not support that, the default mode remains.
  db->run("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;");
  Statement check(*db, "PRAGMA quick_check(1)");
  if (!check.step() || check.text(0) != "ok") throw StoreError{SQLITE_CORRUPT, "its pages are inconsistent"};
  make_tables(*db);
  Statement(*db, "SELECT id, description, used FROM machine LIMIT 1").step();
  Statement(*db, "SELECT machine, key, value, spread, samples, at FROM measurement LIMIT 1").step();
  return db;
}

void move_away(const fs::path& file) {
  // Keeps one broken store for inspection; a journal without its store is useless.
  std::error_code error;
  for (const char* part : {"-wal", "-shm", "-journal"}) fs::remove(file.string() + part, error);
  fs::rename(file, file.string() + ".corrupt", error);
  if (error) throw StoreError{SQLITE_CANTOPEN, error.message()};
}

int64_t now() { return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(); }

fs::path environment_path(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The first key after all keys with the prefix. UTF-8 text never contains the byte 0xff.
std::string end_of(std::string_view prefix) { return std::string(prefix) + '\xff'; }

}  // namespace

namespace {

fs::path named_cache_folder() {
  if (fs::path own = environment_path("RIDGE_CACHE"); !own.empty()) return own;
  if (fs::path base = environment_path("XDG_CACHE_HOME"); base.is_absolute()) return base / "ridge";
  if (fs::path home = environment_path("HOME"); home.is_absolute()) return home / ".cache" / "ridge";
  return {};
}

}  // namespace

std::string cache_problem() {
  const fs::path folder = named_cache_folder();
  const std::string why = folder.empty() ? std::string() : why_untrusted_folder(folder);
  std::error_code ignored;
  if (!why.empty() && !fs::is_directory(folder, ignored))
    return fmt::format("there is no cache: {}; set RIDGE_CACHE to a folder. Until then, measurements, tokens and kernels are recreated in every run", why);
  return why.empty() ? why
                     : fmt::format(
                           "the cache {} is not used, because others may have written to it: {}. Until then, measurements, tokens and kernels are recreated in "
                           "every run",
                           folder.string(), why);
}

fs::path cache_folder() { return cache_problem().empty() ? named_cache_folder() : fs::path(); }

// The number is the schema version: another schema uses another file.
fs::path measurement_store_file() {
  const fs::path folder = cache_folder();
  return folder.empty() ? folder : folder / "measurements-1.db";
}

struct MeasurementStore::State {
  Fingerprint fingerprint;
  fs::path file;
  std::mutex mutex;
  std::unique_ptr<Database> db;
  bool in_memory = false, rebuilt = false, entered = false;
  std::string remark;

  void open() {
    try {
      if (file.empty()) throw StoreError{SQLITE_CANTOPEN, "no cache folder is known; set RIDGE_CACHE or HOME"};
      std::string why = make_private_folder(file.parent_path());
      if (why.empty()) why = why_untrusted_folder(file.parent_path());
      if (!why.empty()) throw StoreError{SQLITE_CANTOPEN, why};
      FolderLock lock(file);
      try {
        db = open_file(file);
      } catch (const StoreError& e) {
        if (!e.corrupt()) throw;
        rebuild(e);
      }
    } catch (const StoreError& e) {
      use_memory(e);
    }
  }

  // Call with the lock held.
  void rebuild(const StoreError& why) {
    db.reset();
    rebuilt = true;
    entered = false;
    move_away(file);
    remark = fmt::format("the measurement store {} could not be read ({}); it was moved to {}.corrupt and recreated", file.string(), why.what,
                         file.filename().string());
    db = open_file(file);
  }

  // Once, in a write's transaction: processes that only read leave the file alone.
  void enter_machine() {
    if (std::exchange(entered, true)) return;
    Statement(*db, "INSERT INTO machine VALUES(?1, ?2, ?3) ON CONFLICT(id) DO UPDATE SET used=?3", fingerprint.id, fingerprint.description, now()).step();
    Statement(*db, "DELETE FROM machine WHERE id NOT IN (SELECT id FROM machine ORDER BY id=?1 DESC, used DESC LIMIT ?2)", fingerprint.id, kMaxMachines).step();
    db->run("DELETE FROM measurement WHERE machine NOT IN (SELECT id FROM machine)");
  }

  void use_memory(const StoreError& why) {
    db.reset();
    in_memory = true;
    entered = false;
    remark = file.empty() ? cache_problem() : std::string();
    if (remark.empty())
      remark =
          fmt::format("the measurement store {} cannot be used ({}); measurements are kept in memory only", file.empty() ? "file" : file.string(), why.what);
    db = open_memory();
    try {
      copy_readable_rows();
    } catch (const StoreError&) {
      // Nothing can be read; the remark says why.
    }
  }

  void copy_readable_rows() {
    std::error_code error;
    if (file.empty() || !fs::is_regular_file(file, error) || !why_untrusted_folder(file.parent_path()).empty()) return;
    std::string uri = "file:";
    for (char c : fs::absolute(file, error).string()) uri += c == '?' || c == '#' || c == '%' ? fmt::format("%{:02x}", int(c)) : std::string(1, c);
    Database from(uri + "?mode=ro&immutable=1", SQLITE_OPEN_READONLY);
    Statement rows(from, "SELECT key, value, spread, samples, at FROM measurement WHERE machine=?1", fingerprint.id);
    while (rows.step()) insert(*db, rows.text(0), {rows.text(1), rows.real(2), int(rows.integer(3)), rows.integer(4)});
  }

  void insert(Database& to, std::string_view key, const Measurement& m) {
    Statement(to, "INSERT OR REPLACE INTO measurement VALUES(?1, ?2, ?3, ?4, ?5, ?6)", fingerprint.id, key, m.value, m.spread, int64_t(m.samples), m.when)
        .step();
  }

  // A store can also break, or its disk fill up, while it is open.
  template <class Body>
  auto with_database(const Body& body) {
    std::lock_guard lock(mutex);
    for (;;) {
      try {
        return body(*db);
      } catch (const StoreError& e) {
        if (in_memory) fail(ErrorCode::internal, "[measurements] {}", e.what);
        recover(e);
      }
    }
  }

  void recover(const StoreError& why) {
    if (!why.corrupt() || rebuilt) return use_memory(why);
    try {
      FolderLock lock(file);
      db.reset();
      try {
        db = open_file(file);  // another process may have been here first
        rebuilt = true;
        entered = false;
      } catch (const StoreError& e) {
        if (!e.corrupt()) throw;
        rebuild(e);
      }
    } catch (const StoreError& e) {
      use_memory(e);
    }
  }
};

MeasurementStore::MeasurementStore(const Fingerprint& fingerprint, const fs::path& file) : state_(std::make_unique<State>()) {
  state_->fingerprint = fingerprint;
  state_->file = file;
  state_->open();
}

MeasurementStore::~MeasurementStore() = default;
MeasurementStore::MeasurementStore(MeasurementStore&&) noexcept = default;

void MeasurementStore::put(std::string_view key, const Measurement& measurement) {
  const NamedMeasurement row{std::string(key), measurement};
  put({&row, 1});
}

void MeasurementStore::put(std::span<const NamedMeasurement> rows) {
  for (const auto& [key, m] : rows) {
    if (key.empty()) fail(ErrorCode::value, "[measurements] a measurement without a key");
    if (!nlohmann::json::accept(m.value)) fail(ErrorCode::value, "[measurements] the value of {} is not JSON: {}", key, m.value);
    if (!std::isfinite(m.spread)) fail(ErrorCode::value, "[measurements] a spread of {} for {}", m.spread, key);
  }
  state_->with_database([&](Database& db) {
    Transaction t(db);
    state_->enter_machine();
    for (const auto& [key, m] : rows) state_->insert(db, key, {m.value, m.spread, m.samples, now()});
    t.commit();
  });
}

std::optional<Measurement> MeasurementStore::get(std::string_view key) const {
  return state_->with_database([&](Database& db) -> std::optional<Measurement> {
    Statement row(db, "SELECT value, spread, samples, at FROM measurement WHERE machine=?1 AND key=?2", state_->fingerprint.id, key);
    if (!row.step()) return {};
    return Measurement{row.text(0), row.real(1), int(row.integer(2)), row.integer(3)};
  });
}

std::optional<double> MeasurementStore::number(std::string_view key) const {
  const auto found = get(key);
  if (!found) return {};
  auto value = nlohmann::json::parse(found->value, nullptr, false);
  if (value.is_object() && value.contains("value")) value = nlohmann::json(value["value"]);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::vector<NamedMeasurement> MeasurementStore::all(std::string_view prefix) const {
  return state_->with_database([&](Database& db) {
    std::vector<NamedMeasurement> found;
    Statement rows(db, "SELECT key, value, spread, samples, at FROM measurement WHERE machine=?1 AND key>=?2 AND key<?3 ORDER BY key", state_->fingerprint.id,
                   prefix, end_of(prefix));
    while (rows.step()) found.push_back({rows.text(0), {rows.text(1), rows.real(2), int(rows.integer(3)), rows.integer(4)}});
    return found;
  });
}

int64_t MeasurementStore::forget(std::string_view prefix) {
  return state_->with_database([&](Database& db) {
    Transaction t(db);
    Statement(db, "DELETE FROM measurement WHERE machine=?1 AND key>=?2 AND key<?3", state_->fingerprint.id, prefix, end_of(prefix)).step();
    const int64_t gone = db.changes();
    t.commit();
    return gone;
  });
}

bool MeasurementStore::stored() const {
  std::lock_guard lock(state_->mutex);
  return !state_->in_memory;
}

std::string MeasurementStore::remark() const {
  std::lock_guard lock(state_->mutex);
  return state_->remark;
}

const fs::path& MeasurementStore::file() const { return state_->file; }

}  // namespace ridge
