CREATE TABLE plays (number INTEGER PRIMARY KEY, step INT, evaluation INT, arena TEXT, task TEXT,
    seed TEXT, level TEXT, failure TEXT, tokens INT, turns INT, started REAL, ended REAL,
    asked TEXT, answer TEXT);
CREATE TABLE seats (number INT, role TEXT, seat TEXT, policy TEXT, reward REAL, advantage REAL);
CREATE TABLE texts (number INTEGER PRIMARY KEY, text BLOB);
CREATE TABLE positions (id INTEGER PRIMARY KEY, arena TEXT, role TEXT, asked TEXT, count INT,
    UNIQUE (arena, role, asked));
CREATE TABLE moves (position INT, step INT, move TEXT, sum REAL, count INT,
    PRIMARY KEY (position, step, move)) WITHOUT ROWID;
CREATE TABLE damaged (number INTEGER PRIMARY KEY);
CREATE TABLE newest (number INT, crc INT);
INSERT INTO newest VALUES (0, 0);
CREATE INDEX by_task ON plays (arena, task, step, evaluation);
CREATE INDEX by_count ON positions (count);
CREATE INDEX by_number ON seats (number);
CREATE INDEX by_reward ON seats (role, reward, number);
CREATE INDEX by_seat ON seats (seat, number);
